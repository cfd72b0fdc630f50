"""What tools that draw curves need on a rank: one curve for all attempts of the run."""
