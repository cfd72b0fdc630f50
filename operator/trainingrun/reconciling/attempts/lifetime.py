"""The run's own clock: start, deadline, end and time to live."""

from ...api.reasons import ConditionReason, EventReason
from ...api.v1alpha1 import API_VERSION, KIND
from ..context import OWNED_KINDS, ReconcileContext
from ..findings import AttemptEnd, Blocker, Draft, Findings, RunFailure
from ..model import Delete, Ref, RunEvent
from ..status import goodput, progress_status
from ..timestamps import seconds_since, written


def accept(context: ReconcileContext, draft: Draft) -> Findings:
    """The run's clock starts, once; a spec that cannot be used starts nothing.

    What runs continues as it was rendered.
    """
    if context.observed.invalid:
        return Findings(refused=Blocker(ConditionReason.INVALID_SPEC, context.observed.invalid))
    return Findings(status={} if draft.status.start_time else {"start_time": written(context.now)})


def left_to_the_garbage_collector(context: ReconcileContext) -> bool:
    """Whether a deleted run is about to go, or what it owns is to stay (`--cascade=orphan`)."""
    finalizers = context.run.metadata.finalizers
    return not finalizers or "orphan" in finalizers


def deadline(context: ReconcileContext, draft: Draft) -> Findings:
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


def succeed(context: ReconcileContext, draft: Draft, attempt: int) -> Findings:
    """End the run with that attempt's result."""
    spent = goodput.until(draft, context.now)
    result = progress_status.result(
        context.progress(attempt), draft.status.checkpoint, context.run.spec.sweep
    )
    return Findings(
        status={**spent.status, "completion_time": written(context.now), "result": result},
        bookkeeping=spent.bookkeeping,
        events=(RunEvent("Normal", EventReason.SUCCEEDED, "The training is done"),),
        requeue_within_s=0,
    )


def fail(context: ReconcileContext, draft: Draft, cause: RunFailure) -> Findings:
    """End the run."""
    spent = goodput.until(draft, context.now)
    return Findings(
        status={
            **spent.status,
            "completion_time": written(context.now),
            "next_attempt_time": None,
        },
        bookkeeping=spent.bookkeeping,
        events=(RunEvent("Warning", EventReason.FAILED, cause.message),),
        requeue_within_s=0,
    )


def delete_after_ttl(context: ReconcileContext, draft: Draft, gone: bool) -> Findings:
    """Delete the run itself ttlSecondsAfterFinished after its end, once its objects are gone.

    Args:
        context: What was observed.
        draft: The status of the ended run.
        gone: Whether all of its objects are gone.
    """
    ttl, ended = context.run.spec.ttl_seconds_after_finished, draft.status.completion_time
    if ttl is None or ended is None or context.unknown(KIND):
        return Findings()
    left = ttl - seconds_since(ended, context.now)
    if left > 0:
        return Findings(requeue_within_s=left)
    meta = context.run.metadata
    ref = Ref(API_VERSION, KIND, meta.namespace, meta.name, meta.uid)
    certain = gone and context.is_absent_for_certain(*OWNED_KINDS)
    return Findings(actions=(Delete(ref),) if certain else ())
