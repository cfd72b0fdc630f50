"""The actor that all ranks of a run report to."""
