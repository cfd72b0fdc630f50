"""The command line: `trainingrun …`, also `kubectl trainingrun …`."""
