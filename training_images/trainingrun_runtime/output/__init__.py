"""What the processes of a run print: to the container's output, and in parts to the bucket."""
