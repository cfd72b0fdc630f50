"""Pure: (run, attempt, settings) -> the manifests of one attempt."""
