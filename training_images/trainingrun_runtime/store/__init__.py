"""The bucket: what a run keeps in it, and how it is written, verified and read."""
