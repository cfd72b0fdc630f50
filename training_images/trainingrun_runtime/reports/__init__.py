"""What rank 0 reports of each step, on its way to a table in the run's folder."""
