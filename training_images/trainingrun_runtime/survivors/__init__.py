"""The last finished step, saved by the ranks that are left when one is lost."""
