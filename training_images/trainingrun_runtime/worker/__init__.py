"""One rank: its training function, what it restores, and how it leaves."""
