"""suspend: true checkpoints first, then deletes every pod; false continues from there.

The run counts as suspended, and its deadline does not advance, only once the last pod is gone.
Nor does it while Kueue keeps the run waiting, as with Jobs: Kueue suspends the RayJob until it is
admitted, and when its capacity is taken back.
"""

from ...api.reasons import EventReason
from ...api.status import Attempt, LossReason
from .. import pod_status
from ..context import ReconcileContext
from ..findings import AttemptEnd, Draft, Findings
from ..model import RequestSuspend, RunEvent
from ..timestamps import seconds_since, written


def request(context: ReconcileContext, draft: Draft, attempt: Attempt) -> Findings:
    """Request the runtime to checkpoint and end; the end itself where there is nothing to save."""
    if not context.run.spec.suspend:
        # Suspend was set to false again; a driver that ends all the same gets a next attempt.
        return Findings(
            bookkeeping={"suspend_asked": None} if draft.bookkeeping.suspend_asked else {}
        )
    head = context.head(attempt.number)
    if head is None or not pod_status.running(head) or not _driver_is_up(context, attempt):
        if not context.is_absent_for_certain("Pod", "RayJob"):
            return Findings()  # a driver may be there
        # No driver has reported, so nothing was trained that a checkpoint could keep.
        return Findings(end=_end("Suspended before the driver had anything to save"))
    requested = draft.bookkeeping.suspend_asked or written(context.now)
    late = seconds_since(requested, context.now) >= context.settings.suspend_deadline_s
    if late and context.can_be_empty:
        return Findings(
            end=_end(
                "Suspended without a last checkpoint: the runtime made none within "
                f"{round(context.settings.suspend_deadline_s)} s"
            )
        )
    action = RequestSuspend(attempt.number)
    if draft.bookkeeping.suspend_asked is not None:
        return Findings(actions=(action,))
    event = RunEvent(
        "Normal", EventReason.SUSPENDING, "The operator requests a checkpoint and the attempt's end"
    )
    return Findings(bookkeeping={"suspend_asked": requested}, actions=(action,), events=(event,))


def rest(context: ReconcileContext, draft: Draft) -> Findings:
    """Every pod is gone: suspended time begins, once."""
    if draft.bookkeeping.suspended_since is not None:
        return Findings()
    event = RunEvent("Normal", EventReason.SUSPENDED, "Every pod is gone; suspend: false continues")
    return Findings(bookkeeping={"suspended_since": written(context.now)}, events=(event,))


def resume(context: ReconcileContext, draft: Draft) -> Findings:
    """Suspended time ends, where it had begun."""
    since = draft.bookkeeping.suspended_since
    if since is None:
        return Findings()
    seconds = max(seconds_since(since, context.now), 0.0)
    event = RunEvent("Normal", EventReason.RESUMED, f"Suspended for {round(seconds)} s")
    return Findings(
        status={"suspended_seconds": draft.status.suspended_seconds + seconds},
        bookkeeping={"suspended_since": None},
        events=(event,),
    )


def _driver_is_up(context: ReconcileContext, attempt: Attempt) -> bool:
    """By its progress or, where this process has read none yet, by its RayJob."""
    job = context.job(attempt.number) or {}
    status = job.get("status") or {}
    return context.progress(attempt.number) is not None or status.get("jobStatus") == "RUNNING"


def _end(message: str) -> AttemptEnd:
    return AttemptEnd("Suspended", LossReason.SUSPENDED, message)


def record_queue_wait(context: ReconcileContext, draft: Draft, attempt: int | None) -> Findings:
    """Record when a wait begins, and how long it was once it has ended.

    Args:
        context: What was observed.
        draft: The status so far.
        attempt: The running attempt; None: none runs.
    """
    since = draft.bookkeeping.queued_since
    if attempt is not None:
        if context.job(attempt) is None and not context.deleted(attempt):
            return Findings()  # it cannot be seen
        if context.suspended_by_queue(attempt):
            return Findings(bookkeeping={} if since else {"queued_since": written(context.now)})
    if since is None:
        return Findings()
    seconds = max(seconds_since(since, context.now), 0.0)
    return Findings(
        status={"queued_seconds": draft.status.queued_seconds + seconds},
        bookkeeping={"queued_since": None},
    )
