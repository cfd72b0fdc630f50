"""Finds that the ranks of a run stand still, keeps their stacks, and ends what hangs."""
