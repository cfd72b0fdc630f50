"""suspend: true checkpoints first, then frees every pod; false goes on from there.

The run counts as suspended, and its deadline stands still, only once the last pod is gone.
"""

from ..api.reasons import EventReason
from ..api.status import Attempt, LossReason
from . import pod_status
from .context import ReconcileContext
from .endings import AttemptEnd
from .model import AskToSuspend
from .plan_builder import PlanBuilder
from .timestamps import seconds_since, written


def ask(context: ReconcileContext, builder: PlanBuilder, attempt: Attempt) -> AttemptEnd | None:
    """Ask the runtime to checkpoint and end; the end itself where there is nothing to wait for."""
    if not context.run.spec.suspend:
        if builder.bookkeeping.suspend_asked is not None:
            # Taken back; a driver that ends all the same is followed by the next attempt.
            builder.update_bookkeeping(suspend_asked=None)
        return None
    head = context.head(attempt.number)
    if head is None or not pod_status.running(head) or not _driver_is_up(context, attempt):
        if context.unknown("Pod", "RayJob"):
            return None  # a driver may be there
        # No driver has spoken, so nothing was trained that a checkpoint could keep.
        return _end("Suspended before the driver had anything to save")
    if builder.bookkeeping.suspend_asked is None:
        builder.update_bookkeeping(suspend_asked=written(context.now))
        builder.add_event(
            "Normal", EventReason.SUSPENDING, "The runtime is asked to make a checkpoint and end"
        )
    asked = builder.bookkeeping.suspend_asked
    late = asked is not None and (
        seconds_since(asked, context.now) >= context.settings.suspend_deadline_s
    )
    if late and context.can_be_empty:
        return _end(
            "Suspended without a last checkpoint: the runtime made none within "
            f"{round(context.settings.suspend_deadline_s)} s"
        )
    builder.add_action(AskToSuspend(attempt.number))
    return None


def rest(context: ReconcileContext, builder: PlanBuilder) -> None:
    """Every pod is gone: the clock stands still from now on."""
    if builder.bookkeeping.suspended_since is None:
        builder.update_bookkeeping(suspended_since=written(context.now))
        builder.add_event(
            "Normal", EventReason.SUSPENDED, "Every pod is gone; suspend: false goes on"
        )


def resume(context: ReconcileContext, builder: PlanBuilder) -> None:
    """The wish was taken back: the clock goes on."""
    since = builder.bookkeeping.suspended_since
    if since is None:
        return
    slept = max(seconds_since(since, context.now), 0.0)
    builder.update_status(suspended_seconds=builder.status.suspended_seconds + slept)
    builder.update_bookkeeping(suspended_since=None)
    builder.add_event("Normal", EventReason.RESUMED, f"Suspended for {round(slept)} s")


def _driver_is_up(context: ReconcileContext, attempt: Attempt) -> bool:
    """By its word or, for an operator that has just started and heard none yet, by its RayJob."""
    job = context.job(attempt.number) or {}
    status = job.get("status") or {}
    return context.progress(attempt.number) is not None or status.get("jobStatus") == "RUNNING"


def _end(message: str) -> AttemptEnd:
    return AttemptEnd("Suspended", LossReason.SUSPENDED, message)
