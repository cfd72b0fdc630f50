"""What is in the run's folder: checkpoints, their manifests and the final result."""
