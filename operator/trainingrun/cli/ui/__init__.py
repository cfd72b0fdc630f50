"""The pages of `trainingrun ui`: a fleet of runs, one run, and what its ranks print."""
