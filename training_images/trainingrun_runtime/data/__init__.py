"""Data of a training: loaders that can be restored exactly, and the time spent waiting for data."""
