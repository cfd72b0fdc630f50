"""States in which nothing moves and no object says why: each gets a message, and an action if safe.

Deletions name the object by its UID, and only what belongs to the run by its labels and by its
chain of owners is deleted. Polls of the driver's progress that fail end nothing: they have many
causes that leave the training healthy, such as an operator that has just started, a NetworkPolicy
or a mesh in between, or another token. An attempt is given up only where KubeRay reports that it
never submitted a driver.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from ...api.reasons import ConditionReason
from ...api.status import Attempt
from .. import pod_status
from ..context import RAY_API, ReconcileContext, job_status
from ..findings import Blocker, Findings, StatusDraft
from ..model import Delete, Object
from ..texts import seconds_since, written
from . import hung_pods

KUBERAY_SILENT_S = 60.0
"""How long KubeRay may do nothing about a RayJob or missing pods before the status reports it. It
makes pods within seconds; one that starts 300 RayJobs at once takes 13 s."""

DELETION_S = 60.0
"""How long a deletion may take beyond its grace period before the status reports what holds it."""

ORPHAN_S = 30.0
"""How long the garbage collector may take after an attempt's end before the operator deletes what
its RayJob has left: it was deleted with `--cascade=orphan`."""


SILENT_S = 60.0
"""Seconds of this process's own polls without an answer, before the status reports it."""

NOT_SUBMITTED = ("", "PENDING")
"""RayJob's status.jobStatus before its driver runs."""


def of_attempt(context: ReconcileContext, draft: StatusDraft, attempt: Attempt) -> Findings:
    """What does not move in a running attempt; checked after all that has a cause of its own."""
    complete = Findings(
        bookkeeping={"incomplete_since": None} if draft.bookkeeping.incomplete_since else {}
    )
    if (
        not context.can_be_empty
        or context.suspended_by_queue(attempt.number)
        or draft.bookkeeping.end_seen
    ):
        return complete
    job, index = context.job(attempt.number), context.index(attempt.number)
    if job is None or seconds_since(attempt.start_time, context.now) < KUBERAY_SILENT_S / 2:
        return complete
    terminating = _terminating(context, index.unwell)
    if terminating:
        return terminating
    leaving = [pod for pod in index.unwell if pod_status.terminating(pod)]
    gone = sum(1 for pod in index.unwell if pod_status.terminating(pod) or pod_status.ended(pod))
    missing = context.asked_pods(draft, attempt.number) - (len(index.all) - gone)
    if missing <= 0 or leaving or _made_lately(context, index.unwell):
        return complete
    since = draft.bookkeeping.incomplete_since or written(context.now)
    changes = {} if draft.bookkeeping.incomplete_since else {"incomplete_since": since}
    if seconds_since(since, context.now) < KUBERAY_SILENT_S:
        return Findings(bookkeeping=changes)
    message = (
        f"KubeRay makes {missing} missing pods of RayJob {attempt.ray_job} for over "
        f"{round(KUBERAY_SILENT_S)} s; check whether its operator runs, watches namespace "
        f"{context.run.metadata.namespace} and keeps up"
    )
    return Findings(blocker=Blocker(ConditionReason.KUBERAY_SILENT, message), bookkeeping=changes)


def _made_lately(context: ReconcileContext, pods: Sequence[Object]) -> bool:
    """Whether KubeRay has made one of these pods within the time that it may take."""
    return any(
        (context.now - created_at).total_seconds() < KUBERAY_SILENT_S
        for pod in pods
        if (created_at := pod_status.created(pod)) is not None
    )


def of_leftovers(context: ReconcileContext, draft: StatusDraft) -> Findings:
    """What of an ended attempt is not deleted; deletes what has no owner that would."""
    ended = _ended_s(context, draft)
    jobs = [_held(context, "RayJob", job) for _, job in sorted(context.own_jobs.items())]
    findings = [Findings(blocker=blocker) for blocker in jobs]
    for cluster in context.clusters_left:
        orphaned = ended >= ORPHAN_S and _owner_is_gone(context, cluster)
        if pod_status.terminating(cluster):
            findings.append(Findings(blocker=_held(context, "RayCluster", cluster)))
        elif any(jobs) or orphaned:
            findings.append(_delete_own(context, "RayCluster", RAY_API, "RayJob", cluster))
    if (
        ended >= ORPHAN_S
        and not context.own_jobs
        and not context.clusters_left
        and context.can_be_empty
    ):
        findings += [
            _delete_own(context, "Pod", "v1", "RayCluster", pod)
            for pod in context.pods_left
            if not pod_status.terminating(pod)
        ]
    terminating = _terminating(context, context.pods_left)
    if terminating:
        findings.append(terminating)
    return Findings(
        blocker=next((one.blocker for one in findings if one.blocker), None),
        actions=tuple(action for one in findings for action in one.actions),
    )


def _ended_s(context: ReconcileContext, draft: StatusDraft) -> float:
    last = draft.status.last_attempt
    end = draft.status.completion_time or (last.end_time if last else None)
    return seconds_since(end, context.now) if end else 0.0


def _held(context: ReconcileContext, kind: str, item: Object) -> Blocker | None:
    """A deletion that a finalizer holds."""
    deleted_at = item["metadata"].get("deletionTimestamp")
    if not deleted_at or seconds_since(deleted_at, context.now) < DELETION_S:
        return None
    holders = ", ".join(item["metadata"].get("finalizers") or ()) or "none"
    name, namespace = pod_status.name(item), context.run.metadata.namespace
    return Blocker(
        ConditionReason.DELETION_HANGS,
        f"{kind} {name} is being deleted since {deleted_at} and is still there (finalizers: "
        f"{holders}); check whether KubeRay's operator runs, or take the finalizers away: "
        f"kubectl patch {kind.lower()} {name} -n {namespace} --type=merge -p "
        '\'{"metadata":{"finalizers":null}}\'',
    )


def _terminating(context: ReconcileContext, pods: Sequence[Object]) -> Findings | None:
    """A pod that outstays its grace period although its node is ready."""
    for pod in pods:
        late_s = pod_status.overdue_s(pod, context.now)
        if late_s is None or late_s < DELETION_S:
            continue
        name, namespace = pod_status.name(pod), context.run.metadata.namespace
        if pod["metadata"].get("finalizers"):
            return Findings(blocker=_held(context, "Pod", pod))
        blocker = Blocker(
            ConditionReason.POD_TERMINATING,
            f"Pod {name} outstays its grace period for over {round(DELETION_S)} s on node "
            f"{pod_status.node_name(pod)}; check that node's kubelet, or free the pod: kubectl "
            f"delete pod {name} -n {namespace} --force",
        )
        # Where the kubelet says that no process is left, only the object is.
        ended = pod_status.all_containers_ended(pod)
        actions = (Delete(pod_status.pod_ref(pod), grace_s=0),) if ended else ()
        return Findings(blocker=blocker, actions=actions)
    return None


def _owner_is_gone(context: ReconcileContext, cluster: Object) -> bool:
    if context.unknown("RayJob"):
        return False
    number = pod_status.attempt_of(cluster)
    return number is None or context.job(number) is None


def _delete_own(
    context: ReconcileContext, kind: str, api_version: str, owner: str, item: Object
) -> Findings:
    """Delete what its owner has left behind, unless it has another owner."""
    owners = item["metadata"].get("ownerReferences") or ()
    own = f"{context.run.metadata.name}-"
    foreign_owner = next(
        (
            known
            for known in owners
            if known.get("kind") != owner or not str(known.get("name", "")).startswith(own)
        ),
        None,
    )
    if foreign_owner is None:
        return Findings(actions=(Delete(pod_status.ref(item, api_version, kind)),))
    message = (
        f"{kind} {pod_status.name(item)} has this run's labels but belongs to "
        f"{foreign_owner.get('kind')} {foreign_owner.get('name')}; delete it, or take the "
        "labels away, and the run continues"
    )
    return Findings(blocker=Blocker(ConditionReason.FOREIGN_OBJECT, message))


def hung_since(
    context: ReconcileContext, draft: StatusDraft, attempt: Attempt, job: Object
) -> str | None:
    """Since when every pod runs and no driver is submitted; None: that is not so.

    Kept in the bookkeeping, so that a restarted operator continues to count.
    """
    if context.unknown("RayJob", "Pod"):
        return draft.bookkeeping.hung_since
    pods = context.index(attempt.number).all
    hangs = (
        job_status(job) in NOT_SUBMITTED
        and context.progress(attempt.number) is None
        and context.every_pod_runs(draft, attempt.number)
        # KubeRay submits once every pod is Ready, which the user's own containers may prevent.
        and not any(pod_status.unready_containers(pod) is not None for pod in pods)
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


def unready_pods(context: ReconcileContext, attempt: Attempt) -> Blocker | None:
    """Pods that run and are not ready, before the driver runs."""
    job = context.job(attempt.number)
    if job is None or job_status(job) not in NOT_SUBMITTED or context.progress(attempt.number):
        return None
    for pod in context.index(attempt.number).all:
        unready = _unready(pod) if pod_status.running(pod) else None
        if unready is None or (context.now - unready.since).total_seconds() < unready.patience_s:
            continue
        what = f"container {unready.container}" if unready.container else "a readiness gate"
        return Blocker(
            ConditionReason.POD_NOT_READY,
            f"Pod {pod_status.name(pod)} runs and {what} of it is not ready for over "
            f"{round(unready.patience_s)} s; KubeRay submits the driver once every pod is ready: "
            "see its probe and log",
        )
    return None


class _Unready(NamedTuple):
    """What keeps a pod that runs from being ready."""

    container: str
    """Empty: a readiness gate."""
    since: datetime
    patience_s: float


def _unready(pod: Object) -> _Unready | None:
    """The user's own containers where Ray is ready, else Ray's: its probe may be the user's own,
    so that no liveness probe of KubeRay's ends it.
    """
    containers, since = pod_status.unready_containers(pod), pod_status.changed_readiness(pod)
    if containers is not None and since is not None:
        return _Unready(next(iter(containers), ""), since, SILENT_S)
    ray = pod_status.ray_container(pod) or {}
    began_at = hung_pods.started_at(ray) if not ray.get("ready") else None
    return _Unready(str(ray["name"]), began_at, hung_pods.HUNG_S) if began_at else None


def silent_driver(context: ReconcileContext, attempt: Attempt) -> Blocker | None:
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
    if context.progress(attempt.number) is not None or polled_s is None or not runs:
        return None
    # The head may have answered for long before KubeRay could submit the driver: not before the
    # last pod was ready.
    ready_at = filter(None, map(pod_status.ready_since, context.index(attempt.number).all))
    since = max(ready_at, default=None)
    if since is not None:
        polled_s = min(polled_s, (context.now - since).total_seconds())
    if polled_s >= context.settings.startup_deadline_s:
        return Blocker(
            ConditionReason.DRIVER_SILENT,
            f"The driver has reported nothing for {round(context.settings.startup_deadline_s)} s, "
            f"though KubeRay calls its job RUNNING; read its log in pod {pod_status.name(head)}",
        )
    return None
