"""Every touch of Ray's internals: a new version of Ray is checked here alone."""
