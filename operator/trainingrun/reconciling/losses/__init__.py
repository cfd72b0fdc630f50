"""What was lost and why, counted once; which nodes and pods are replaced or excluded."""
