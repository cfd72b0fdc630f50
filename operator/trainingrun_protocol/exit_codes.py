"""All exit codes of the driver, by which the operator tells how an attempt has ended."""

DONE_EXIT_CODE = 0
"""The training is done, and its result is in the bucket."""
FAILED_EXIT_CODE = 1
"""The attempt has failed; `failure` of the progress document says why."""
LEASE_LOST_EXIT_CODE = 3
"""Another driver has taken the run over."""
SUSPEND_EXIT_CODE = 75
"""Suspended: not 0, so that RayJob success always means done."""
