"""Exit codes of the driver, beside 0 for a finished training and 1 for a failed one."""

LEASE_LOST_EXIT_CODE = 3
"""Another driver has taken the run over."""
SUSPEND_EXIT_CODE = 75
"""Suspended: not 0, so that RayJob success always means done."""
