"""What the end of an attempt changes, and what follows for the run.

Crash safety comes from the order. An end is first written to the status, then the RayJob is
deleted, then the next attempt waits until nothing of the former is left.
"""

from datetime import timedelta

from ...api.reasons import EventReason
from ...api.status import Budget, LossReason
from .. import pod_status
from ..bookkeeping import OF_ONE_ATTEMPT
from ..context import ReconcileContext
from ..findings import AttemptEnd, Draft, Findings
from ..losses import out_of_memory
from ..model import Delete, RunEvent
from ..texts import ATTEMPT_MESSAGE, short
from ..timestamps import written
from . import retry_policy


def record(context: ReconcileContext, draft: Draft, end: AttemptEnd) -> Findings:
    """Write how the running attempt ended, count it, and forget what concerns it alone."""
    reason = out_of_memory.reason_of_end(end.reason, draft.bookkeeping, context.now)
    *earlier, attempt = draft.status.attempts
    closed = attempt.model_copy(
        update={
            "outcome": end.outcome,
            "reason": reason,
            "message": short(end.message, ATTEMPT_MESSAGE),
            "end_time": written(context.now),
        }
    )
    disruptions, changes = draft.status.disruptions, dict(OF_ONE_ATTEMPT)
    if reason is LossReason.APPLICATION_ERROR:
        errors = disruptions.application_errors + 1
        disruptions = disruptions.model_copy(update={"application_errors": errors})
    elif reason is LossReason.STORAGE_ERROR or (
        end.outcome == "Lost" and not draft.bookkeeping.counted
    ):
        changes["other_losses"] = draft.bookkeeping.other_losses + 1
    if end.outcome == "Suspended":
        # A suspended attempt is not one without progress.
        changes["attempts_without_progress"] = max(
            draft.bookkeeping.attempts_without_progress - 1, 0
        )
    message = f"Attempt {attempt.number}: {end.message}"
    events = {
        "Failed": (RunEvent("Warning", EventReason.ATTEMPT_FAILED, message),),
        "Lost": (RunEvent("Warning", EventReason.ATTEMPT_LOST, message),),
    }
    failures = retry_policy.application_failures(disruptions)
    return Findings(
        status={
            "attempts": [*earlier, closed],
            "disruptions": disruptions,
            "restarts": min(failures, context.run.spec.failures.max_restarts),
        },
        bookkeeping=changes,
        events=events.get(end.outcome, ()),
        charged=retry_policy.budgets(reason),
        requeue_within_s=0,
    )


def retry(context: ReconcileContext, draft: Draft, charged: frozenset[Budget]) -> Findings:
    """After a failed or lost attempt: why none follows, or when the next one may begin.

    Args:
        context: What was observed.
        draft: The status, with the end of the attempt and what it lost.
        charged: The budgets that this reconcile charged.
    """
    ended, failures = draft.status.attempts[-1], context.run.spec.failures
    if ended.outcome not in ("Failed", "Lost"):
        return Findings()
    progress = context.progress(ended.number)
    failure = progress.failure if progress is not None else None
    before = draft.status.attempts[-2] if len(draft.status.attempts) > 1 else None
    run_failure = (
        (retry_policy.would_repeat(failure, ended, before) if failure is not None else None)
        or retry_policy.exhausted(draft, failures, charged)
        or retry_policy.without_progress(ended, draft.bookkeeping, failures)
    )
    if run_failure:
        return Findings(run_failure=run_failure)
    wait = retry_policy.backoff(
        ended.reason, draft.bookkeeping.attempts_without_progress, failures.backoff
    )
    if wait > timedelta(0):
        return Findings(status={"next_attempt_time": written(context.now + wait)})
    return Findings()


def nothing_left(context: ReconcileContext) -> bool:
    """Whether every object of every attempt is known to be gone."""
    left = context.own_jobs() or context.clusters_left or context.pods_left
    return not left and context.can_be_empty


def delete_ray_jobs(context: ReconcileContext) -> Findings:
    """Delete the RayJobs of ended attempts; owner references collect their pods."""
    jobs = [job for _, job in sorted(context.own_jobs().items()) if not pod_status.terminating(job)]
    return Findings(
        actions=tuple(Delete(context.job_ref(job)) for job in jobs),
        requeue_within_s=None if nothing_left(context) else context.settings.poll_s,
    )


def delete_earlier_ray_jobs(context: ReconcileContext, attempt: int) -> Findings:
    """Delete RayJobs of attempts that ended before the one that runs began.

    There is one only where a former leader was stopped for long between its last check that it
    leads and the request by which it creates one. Its driver does not get the run's lease, which a
    later attempt has.
    """
    late = [
        job
        for number, job in sorted(context.own_jobs().items())
        if number < attempt and not pod_status.terminating(job)
    ]
    return Findings(actions=tuple(Delete(context.job_ref(job)) for job in late))
