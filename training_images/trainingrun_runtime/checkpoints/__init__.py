"""Checkpoints: what is in their files, how they are uploaded, downloaded and restored."""
