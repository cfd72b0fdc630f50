"""A driver whose progress cannot be read: what that means, and what it does not.

Failing polls alone end nothing. They have many causes that leave the training healthy: an operator
that has just started, a NetworkPolicy or a mesh in between, another token. The status reports
it then. An attempt is given up only where KubeRay reports that it never submitted a driver.
"""

from ...api.reasons import ConditionReason
from ...api.status import Attempt
from .. import pod_status
from ..context import ReconcileContext, job_status
from ..findings import Blocker, Draft
from ..model import Object
from ..timestamps import seconds_since, written

SILENT_S = 60.0
"""Seconds of this process's own polls without an answer, before the status reports it."""

NOT_SUBMITTED = ("", "PENDING")
"""RayJob's status.jobStatus before its driver runs."""


def hung_since(
    context: ReconcileContext, draft: Draft, attempt: Attempt, job: Object
) -> str | None:
    """Since when every pod runs and no driver is submitted; None: that is not so.

    Kept in the bookkeeping, so that a restarted operator continues to count.
    """
    if context.unknown("RayJob", "Pod"):
        return draft.bookkeeping.hung_since
    hangs = (
        job_status(job) in NOT_SUBMITTED
        and context.progress(attempt.number) is None
        and context.every_pod_runs(draft, attempt.number)
    )
    return (draft.bookkeeping.hung_since or written(context.now)) if hangs else None


def never_submitted(context: ReconcileContext, hung_since: str | None) -> str | None:
    """Why the attempt is given up: every pod runs for long, and no driver was ever submitted.

    Two signs: the head answers no poll with a document, and KubeRay reports no job as running.
    """
    if hung_since is None or context.unknown("RayJob", "Pod"):
        return None
    deadline_s = context.settings.startup_deadline_s
    polled_s = context.observed.progress_polled_s
    if (
        seconds_since(hung_since, context.now) < deadline_s
        or polled_s is None
        or polled_s < SILENT_S
        or not context.is_absent_for_certain("RayJob", "Pod")
    ):
        return None
    return (
        f"Every pod ran for {round(deadline_s)} s and KubeRay submitted no driver; read the log "
        "of KubeRay's operator and of the head pod"
    )


def blocker(context: ReconcileContext, attempt: Attempt) -> Blocker | None:
    """What the status says where progress cannot be read and nothing else is wrong."""
    head, job = context.head(attempt.number), context.job(attempt.number)
    if head is None or not pod_status.running(head) or context.suspended_by_queue(attempt.number):
        return None
    failing_s, polled_s = context.observed.progress_failing_s, context.observed.progress_polled_s
    runs = job is not None and job_status(job) == "RUNNING"
    if failing_s is not None and failing_s >= SILENT_S and runs:
        why = context.observed.progress_error or "it does not answer"
        return Blocker(
            ConditionReason.DRIVER_SILENT,
            f"The progress of pod {pod_status.name(head)} cannot be read, though KubeRay calls its "
            f"job RUNNING: {why}; nothing is ended for that. Let the operator reach port 8484 of "
            "the head pod (NetworkPolicy, service mesh), with the token of the run's own Secret",
        )
    unreported = context.progress(attempt.number) is None and polled_s is not None
    if unreported and runs and (polled_s or 0.0) >= context.settings.startup_deadline_s:
        return Blocker(
            ConditionReason.DRIVER_SILENT,
            f"The driver has reported nothing for {round(context.settings.startup_deadline_s)} s, "
            f"though KubeRay calls its job RUNNING; read its log in pod {pod_status.name(head)}",
        )
    return None
