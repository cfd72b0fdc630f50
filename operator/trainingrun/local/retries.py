"""Whether a failed driver is started again: the operator's rules, for one process. Pure."""

from dataclasses import dataclass

from trainingrun_protocol.progress import Failure

from ..api.v1alpha1 import Failures
from ..reconciling.attempts import retry_policy


@dataclass(frozen=True, slots=True)
class Tally:
    """What the run has used up so far."""

    restarts: int = 0
    """Failures of the application that were retried; failures.maxRestarts bounds them."""
    losses: int = 0
    """Losses of infrastructure; failures.maxPreemptions bounds them, and never the other."""
    attempts_without_progress: int = 0
    """Attempts in a row that ended without a newer checkpoint."""
    error: str = ""
    """That of the code which ended the last attempt before its first step; empty: none did."""


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
    rules: Failures, tally: Tally, failure: Failure, newer_checkpoint: bool, stepped: bool = True
) -> Retry | GiveUp:
    """What follows the end of an attempt.

    Args:
        rules: The run's failures.
        tally: What was used up before.
        failure: Why the attempt ended.
        newer_checkpoint: Whether the attempt committed a checkpoint.
        stepped: Whether it did a step.
    """
    reason = retry_policy.reason_of(failure)
    application = reason.budget == "application"
    after = Tally(
        restarts=tally.restarts + application,
        losses=tally.losses + (not application),
        attempts_without_progress=0 if newer_checkpoint else tally.attempts_without_progress + 1,
        error=failure.message if application and not stepped else "",
    )
    if failure.retry == "Never":
        return GiveUp("the training is done, and another attempt would only repeat it")
    repeated = tally.error and retry_policy.same_error(after.error, tally.error)
    if failure.retry == "UnlessRepeated" and repeated:
        return GiveUp("the same error ended two attempts in a row before their first step")
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
