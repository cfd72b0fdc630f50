"""How the state of the run reaches the operator: progress document, its server, its metrics."""
