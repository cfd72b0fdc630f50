"""The page of a run: what happened to it, in one file."""
