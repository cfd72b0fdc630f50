"""The head: the process that takes the run's lease, trains, and reports how it ended."""
