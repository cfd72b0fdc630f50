"""The TrainingRun operator, its API and its command line."""
