"""What users write and read: spec and status of a TrainingRun, of which the CRD is made."""
