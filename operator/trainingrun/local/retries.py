"""Whether a failed driver is started again: the operator's rules, for one process. Pure."""

from dataclasses import dataclass

from ..api.progress import Failure
from ..api.v1alpha1 import Failures
from ..reconciling import retry_policy


@dataclass(frozen=True, slots=True)
class Tally:
    """What the run has used up so far."""

    restarts: int = 0
    """Failures of the application that were retried; failures.maxRestarts bounds them."""
    losses: int = 0
    """Losses of infrastructure; failures.maxPreemptions bounds them, and never the other."""
    attempts_without_progress: int = 0
    """Attempts in a row that ended without a newer checkpoint."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Start another attempt."""

    tally: Tally
    """The tally after this failure."""
    wait_s: float
    """Seconds to wait before it."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run has failed."""

    message: str
    """Why no further attempt is made, in one sentence."""


def after_failure(
    rules: Failures, tally: Tally, failure: Failure, newer_checkpoint: bool
) -> Retry | GiveUp:
    """What follows the end of an attempt.

    Args:
        rules: The run's failures.
        tally: What was used up before.
        failure: Why the attempt ended.
        newer_checkpoint: Whether the attempt committed a checkpoint.
    """
    reason = retry_policy.reason_of(failure)
    application = reason.budget == "application"
    after = Tally(
        restarts=tally.restarts + application,
        losses=tally.losses + (not application),
        attempts_without_progress=0 if newer_checkpoint else tally.attempts_without_progress + 1,
    )
    if application and after.restarts > rules.max_restarts:
        return GiveUp(f"failures.maxRestarts is {rules.max_restarts}, and all of them are used up")
    if not application and 0 <= rules.max_preemptions < after.losses:
        return GiveUp(
            f"failures.maxPreemptions is {rules.max_preemptions}, and all of them are used up"
        )
    if after.attempts_without_progress >= rules.max_attempts_without_progress:
        return GiveUp(
            f"{after.attempts_without_progress} attempts in a row made no newer checkpoint"
        )
    wait = retry_policy.backoff(reason, after.attempts_without_progress, rules.backoff)
    return Retry(after, wait.total_seconds())
