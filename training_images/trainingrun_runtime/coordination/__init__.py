"""Coordinates driver and workers: coordinator, lease, step consensus, preemption notices."""
