"""The run's own clock: start, suspension, waits in a queue, deadline, end and time to live.

`suspend: true` checkpoints first, then deletes every pod; false continues from there. The run
counts as suspended, and its deadline does not advance, only once the last pod is gone. Nor does it
while Kueue keeps the run waiting, as with Jobs: Kueue suspends the RayJob until it is admitted, and
when its capacity is taken back.
"""

from datetime import datetime

from ...api.reasons import ConditionReason, EventReason
from ...api.status import Attempt, LossReason
from ...api.v1alpha1 import API_VERSION, KIND
from .. import pod_status
from ..context import OWNED_KINDS, ReconcileContext, job_ended_at
from ..findings import AttemptEnd, Blocker, Findings, RunFailure, StatusDraft
from ..model import Delete, Object, Ref, RequestSuspend, RunEvent
from ..status import cost, goodput, progress_status
from ..texts import from_unix, parsed, seconds_since, written

LONGEST_SAVE_S = 1800.0
"""How long a suspended run may save while its driver answers and its bucket does too."""

DEFAULTS_S = 30.0
"""Between two reads of the defaults of a run that cannot begin without others."""


def accept(context: ReconcileContext, draft: StatusDraft) -> Findings:
    """The run's clock starts, once; a spec that cannot be used starts nothing.

    What runs continues as it was rendered.
    """
    if context.observed.invalid:
        return Findings(
            refused=Blocker(ConditionReason.INVALID_SPEC, context.observed.invalid),
            requeue_within_s=DEFAULTS_S if context.observed.repairable else None,
        )
    known = draft.bookkeeping.field_names is not None
    return Findings(
        status={} if draft.status.start_time else {"start_time": written(context.now)},
        bookkeeping={} if known else {"field_names": context.observed.field_names},
    )


def left_to_the_garbage_collector(context: ReconcileContext) -> bool:
    """Whether a deleted run is about to go, or what it owns is to stay (`--cascade=orphan`)."""
    finalizers = context.run.metadata.finalizers
    return not finalizers or "orphan" in finalizers


def deadline(context: ReconcileContext, draft: StatusDraft) -> Findings:
    """The run fails, and with it a running attempt, once activeDeadlineSeconds have passed.

    Before that, they are the longest time until the next reconcile.
    """
    limit = context.run.spec.active_deadline_seconds
    if limit is None or draft.status.start_time is None:
        return Findings()
    if draft.bookkeeping.suspended_since is not None or draft.bookkeeping.queued_since is not None:
        return Findings()  # its clock stands still
    inactive_s = draft.status.suspended_seconds + draft.status.queued_seconds
    left = limit - (seconds_since(draft.status.start_time, context.now) - inactive_s)
    if left > 0:
        return Findings(requeue_within_s=left)
    message = f"The run was active for longer than activeDeadlineSeconds, which is {limit}"
    return Findings(
        end=AttemptEnd("Failed", None, message),
        run_failure=RunFailure(ConditionReason.DEADLINE_EXCEEDED, message),
    )


def request_suspension(context: ReconcileContext, draft: StatusDraft, attempt: Attempt) -> Findings:
    """Request the runtime to checkpoint and end; the end itself where there is nothing to save."""
    if not context.suspends:
        # Suspend was set to false again; a driver that ends all the same gets a next attempt.
        return Findings(
            bookkeeping={"suspend_asked": None} if draft.bookkeeping.suspend_asked else {}
        )
    head = context.head(attempt.number)
    without = context.head_is_gone(attempt.number) if head is None else not pod_status.running(head)
    if without or not _driver_is_up(context, attempt):
        if not context.is_absent_for_certain("Pod", "RayJob"):
            return Findings()  # a driver may be there
        # No driver has reported, so nothing was trained that a checkpoint could keep.
        return Findings(end=_end("Suspended before the driver had anything to save"))
    requested = draft.bookkeeping.suspend_asked or written(context.now)
    within_s = context.settings.suspend_deadline_s
    if context.driver_has_answered(attempt.number) and context.store_may_answer(attempt.number):
        within_s = max(within_s, LONGEST_SAVE_S)  # a step or an upload may take that long
    if seconds_since(requested, context.now) >= within_s and context.can_be_empty:
        message = f"Suspended without a last checkpoint: none was made within {round(within_s)} s"
        return Findings(
            end=_end(message), events=(RunEvent("Warning", EventReason.SUSPENDING, message),)
        )
    action = RequestSuspend(attempt.number)
    if draft.bookkeeping.suspend_asked is not None:
        return Findings(actions=(action,))
    event = RunEvent(
        "Normal", EventReason.SUSPENDING, "The operator requests a checkpoint and the attempt's end"
    )
    return Findings(bookkeeping={"suspend_asked": requested}, actions=(action,), events=(event,))


def begin_suspension(context: ReconcileContext, draft: StatusDraft) -> Findings:
    """Every pod is gone: suspended time begins, once."""
    if draft.bookkeeping.suspended_since is not None:
        return Findings()
    message = f"Every pod is gone; {cost.how_to_continue(context)}"
    event = RunEvent("Normal", EventReason.SUSPENDED, message)
    return Findings(bookkeeping={"suspended_since": written(context.now)}, events=(event,))


def end_suspension(context: ReconcileContext, draft: StatusDraft) -> Findings:
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


def record_queue_wait(
    context: ReconcileContext, draft: StatusDraft, attempt: int | None
) -> Findings:
    """Record when a wait begins, and how long it was once it has ended; no `attempt`: none runs."""
    since = draft.bookkeeping.queued_since
    if attempt is not None:
        job = context.job(attempt)
        if job is None and not context.deleted(attempt):
            return Findings()  # it cannot be seen
        if job is not None and context.suspended_by_queue(attempt):
            since = written(_queued_since(context, draft, job, attempt))
            return Findings(bookkeeping={"queued_since": since})
    if since is None:
        return Findings()
    seconds = max(seconds_since(since, context.now), 0.0)
    first = draft.bookkeeping.queue_seconds  # the wait for the first pods holds Kueue's first one
    more = {} if first is None else {"queue_seconds": first + seconds}
    return Findings(
        status={"queued_seconds": draft.status.queued_seconds + seconds},
        bookkeeping={"queued_since": None, **more},
    )


def _queued_since(
    context: ReconcileContext, draft: StatusDraft, job: Object, attempt: int
) -> datetime:
    """When the wait has begun: as Kueue says, but no later than it was seen.

    Where Kueue cannot be asked, and the pods had gone before an operator that was away saw the
    wait, it begins when they were last known: of the time since then nobody knows that it was used.
    """
    seen, told = draft.bookkeeping.queued_since, context.observed.queued_since
    since = parsed(seen) if seen else context.now
    known, had_pods = draft.bookkeeping.meter.time, draft.bookkeeping.head is not None
    if told is None and known and had_pods and not context.pods(attempt):
        told = parsed(known)
    return max(min(since, told or since), pod_status.created(job) or since)


def _ended_at(context: ReconcileContext, attempt: int) -> datetime:
    """When an attempt had ended whose end is seen now: as KubeRay says, else now.

    A driver may do steps after KubeRay has given up its RayJob.
    """
    ended = job_ended_at(context.job(attempt))
    if ended is None:
        return context.now
    progress = context.progress(attempt)
    stepped = from_unix((progress and progress.step_time) or 0.0)
    return min(max(ended, stepped), context.now)


def succeed(context: ReconcileContext, draft: StatusDraft, attempt: int) -> Findings:
    """End the run with that attempt's result."""
    ended = _ended_at(context, attempt)
    spent = goodput.until_the_end(context, draft, attempt, ended)
    result = progress_status.result(context.progress(attempt), context.run.spec.sweep)
    return Findings(
        status={**spent.status, "completion_time": written(ended), "result": result},
        bookkeeping=spent.bookkeeping,
        events=(RunEvent("Normal", EventReason.SUCCEEDED, "The training is done"),),
        requeue_within_s=0,
    )


def fail(context: ReconcileContext, draft: StatusDraft, cause: RunFailure) -> Findings:
    """End the run: by its deadline now, else with its last attempt."""
    by_deadline = cause.reason is ConditionReason.DEADLINE_EXCEEDED
    attempt = draft.status.attempt
    ended = context.now if by_deadline else _ended_at(context, attempt)
    spent = goodput.until_the_end(context, draft, attempt, ended)
    return Findings(
        status={
            **spent.status,
            "completion_time": written(ended),
            "next_attempt_time": None,
        },
        bookkeeping=spent.bookkeeping,
        events=(RunEvent("Warning", EventReason.FAILED, cause.message),),
        requeue_within_s=0,
    )


def delete_after_ttl(context: ReconcileContext, draft: StatusDraft, gone: bool) -> Findings:
    """Delete the run itself ttlSecondsAfterFinished after its end was seen, once its objects are
    gone: nobody could read before how it had ended.
    """
    ttl, ended = context.run.spec.ttl_seconds_after_finished, draft.status.end_seen_time
    if ttl is None or ended is None or context.unknown(KIND):
        return Findings()
    left = ttl - seconds_since(ended, context.now)
    if left > 0:
        return Findings(requeue_within_s=left)
    meta = context.run.metadata
    ref = Ref(API_VERSION, KIND, meta.namespace, meta.name, meta.uid)
    certain = gone and context.is_absent_for_certain(*OWNED_KINDS)
    return Findings(actions=(Delete(ref),) if certain else ())
