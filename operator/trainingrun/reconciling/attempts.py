"""The attempts in the status."""

from ..api.status import Attempt, RunStatus


def last(status: RunStatus) -> Attempt | None:
    """The newest attempt; None: none has begun."""
    return status.attempts[-1] if status.attempts else None


def running(status: RunStatus) -> Attempt | None:
    """The attempt that is running."""
    newest = last(status)
    return newest if newest and newest.outcome == "Running" else None
