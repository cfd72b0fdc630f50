"""A TrainingRun from Python, in a cluster or on this machine; the command line is written on it."""
