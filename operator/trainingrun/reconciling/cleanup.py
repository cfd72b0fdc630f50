"""What ended attempts have left is deleted, until nothing of it is there."""

from . import pod_status
from .context import ReconcileContext
from .findings import Findings
from .model import Delete


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
