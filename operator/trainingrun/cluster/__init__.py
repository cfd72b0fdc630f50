"""The operator's calls to the Kubernetes API, and its caches of what it watches."""
