"""All use of Ray's private modules: a new version of Ray is checked here alone."""
