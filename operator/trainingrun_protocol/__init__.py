"""What operator and runtime exchange: run contract, progress document, sweep table, exit codes."""
