"""What an error of the training means: its cause, and what to do about it."""
