"""How long the pods of an attempt that failed are kept, so that somebody can look into them.

They are freed as soon as anything else needs them gone: the next attempt, a suspension, a deletion,
also one that spec.budget asks for, of a run that has ended too.
Kept is only what trains no more by two signs that last: the attempt's end is written, and its
driver has ended. An attempt that the operator ends while its driver may live is deleted at once.
"""

from datetime import datetime, timedelta

from ...api.reasons import ConditionReason
from .. import pod_status
from ..context import ENDED_JOB, ReconcileContext, job_status
from ..findings import Blocker, Findings, StatusDraft
from ..model import Object
from ..texts import parsed, written
from . import ending


def keep_pods(context: ReconcileContext, draft: StatusDraft) -> Findings | None:
    """What the status says while the newest attempt's pods are kept; None: they are to be freed."""
    attempt, spec = draft.status.last_attempt, context.run.spec
    keep_s = spec.failures.keep_failed_pods_seconds
    if not keep_s or context.suspends or attempt is None:
        return None
    if attempt.outcome not in ("Failed", "Lost"):
        return None
    job, number = context.job(attempt.number), attempt.number
    if job is None or pod_status.terminating(job) or attempt.end_time is None:
        return None
    ended_at = parsed(attempt.end_time)
    if not _driver_has_ended(context, number, job, ended_at):
        return None
    if not context.pods(number) and not context.unknown("Pod"):
        return None
    until = _until(context, draft, job, ended_at)
    if until is None or until <= context.now:
        return None
    message = (
        f"The pods of attempt {number} are kept until {written(until)} and hold the GPUs, CPUs "
        f"and memory that they request: failures.keepFailedPodsSeconds is {keep_s}; set it to 0 "
        "to free them"
    )
    waits_s = (until - context.now).total_seconds()
    return Findings(
        blocker=Blocker(ConditionReason.PODS_KEPT, message),
        actions=ending.delete_earlier_ray_jobs(context, number).actions,
        requeue_within_s=waits_s if _is_over(job) else min(waits_s, context.settings.poll_s),
    )


def _is_over(job: Object) -> bool:
    return job_status(job) in ENDED_JOB


def _driver_has_ended(
    context: ReconcileContext, number: int, job: Object, ended_at: datetime
) -> bool:
    """By Ray's status of its job or, until KubeRay has read that, by its own final document.

    Until then KubeRay would submit the driver again to a head that replaces this one.
    """
    if _is_over(job):
        return True
    progress, head = context.progress(number), context.head(number)
    if progress is None or not progress.state.final or head is None:
        return False
    created_at = pod_status.created(head)
    waited_s = (context.now - ended_at).total_seconds()
    return (
        pod_status.running(head)
        and created_at is not None
        and created_at <= ended_at
        and waited_s < context.settings.final_progress_s
    )


def _until(
    context: ReconcileContext, draft: StatusDraft, job: Object, ended_at: datetime
) -> datetime | None:
    """When they are freed; None: at once, for another attempt."""
    spec, status = context.run.spec, draft.status
    times = [ended_at + timedelta(seconds=spec.failures.keep_failed_pods_seconds)]
    # KubeRay's own, as the attempt was rendered with it: the setting may have been raised since.
    if ttl_s := (job.get("spec") or {}).get("ttlSecondsAfterFinished"):
        times.append(ended_at + timedelta(seconds=ttl_s))
    if not status.has_ended:
        if status.next_attempt_time is None:
            return None
        times.append(parsed(status.next_attempt_time))
    elif spec.ttl_seconds_after_finished is not None and status.end_seen_time is not None:
        ttl = timedelta(seconds=spec.ttl_seconds_after_finished)
        times.append(parsed(status.end_seen_time) + ttl)
    return min(times)
