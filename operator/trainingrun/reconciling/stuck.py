"""States in which nothing moves and nobody says why: each gets a sentence, and help if it is safe.

Deletions name the very object by its UID, and only what belongs to the run by its labels and by its
chain of owners is deleted.
"""

from collections.abc import Sequence

from ..api.reasons import ConditionReason
from ..api.status import Attempt
from ..rendering import names
from . import pod_status
from .context import RAY_API, ReconcileContext
from .diagnosis import Blocker
from .model import Delete, Object
from .plan_builder import PlanBuilder
from .silence import wanted_pods
from .timestamps import seconds_since, written

KUBERAY_SILENT_S = 60.0
"""How long KubeRay may do nothing about a RayJob or about missing pods before the status says so.
It makes pods within seconds; one that starts 300 RayJobs at once takes 13 s."""

DELETION_S = 60.0
"""How long a deletion may take beyond its grace period before the status says what holds it."""

ORPHAN_S = 30.0
"""How long the garbage collector may take after an attempt's end before the operator deletes what
its RayJob has left: it was deleted with `--cascade=orphan`."""


def of_attempt(context: ReconcileContext, builder: PlanBuilder, attempt: Attempt) -> Blocker | None:
    """What does not move in a running attempt; asked after all that explains itself."""
    if (
        not context.can_be_empty
        or context.suspended_by_queue(attempt.number)
        or builder.bookkeeping.end_seen
    ):
        _complete(builder)
        return None
    job, index = context.job(attempt.number), context.index(attempt.number)
    if job is None or seconds_since(attempt.start_time, context.now) < KUBERAY_SILENT_S / 2:
        _complete(builder)
        return None
    hanging = _terminating(context, builder, index.unwell)
    if hanging:
        return hanging
    leaving = [pod for pod in index.unwell if pod_status.leaving(pod)]
    gone = sum(1 for pod in index.unwell if pod_status.leaving(pod) or pod_status.ended(pod))
    missing = wanted_pods(context, builder) - (len(index.all) - gone)
    if missing <= 0 or leaving:
        _complete(builder)
        return None
    if builder.bookkeeping.incomplete_since is None:
        builder.update_bookkeeping(incomplete_since=written(context.now))
    if seconds_since(builder.bookkeeping.incomplete_since or "", context.now) < KUBERAY_SILENT_S:
        return None
    return Blocker(
        ConditionReason.KUBERAY_SILENT,
        f"KubeRay makes {missing} missing pods of RayJob {attempt.ray_job} for over "
        f"{round(KUBERAY_SILENT_S)} s; look whether its operator runs, watches namespace "
        f"{context.run.metadata.namespace} and keeps up",
    )


def of_leftovers(context: ReconcileContext, builder: PlanBuilder) -> Blocker | None:
    """What of an ended attempt does not go; deletes what nobody else would."""
    ended = _ended_s(context, builder)
    found: list[Blocker | None] = [
        _held(context, "RayJob", job) for _, job in sorted(context.own_jobs().items())
    ]
    held_jobs = any(found)
    for cluster in context.clusters():
        orphaned = ended >= ORPHAN_S and _owner_is_gone(context, cluster)
        if pod_status.leaving(cluster):
            found.append(_held(context, "RayCluster", cluster))
        elif held_jobs or orphaned:
            found.append(_delete_ours(context, builder, "RayCluster", RAY_API, "RayJob", cluster))
    if (
        ended >= ORPHAN_S
        and not context.own_jobs()
        and not context.clusters()
        and context.can_be_empty
    ):
        for pod in context.pods():
            if not pod_status.leaving(pod):
                found.append(_delete_ours(context, builder, "Pod", "v1", "RayCluster", pod))
    found.append(_terminating(context, builder, context.pods()))
    return next((blocker for blocker in found if blocker), None)


def _complete(builder: PlanBuilder) -> None:
    if builder.bookkeeping.incomplete_since is not None:
        builder.update_bookkeeping(incomplete_since=None)


def _ended_s(context: ReconcileContext, builder: PlanBuilder) -> float:
    last = builder.status.attempts[-1] if builder.status.attempts else None
    end = builder.status.completion_time or (last.end_time if last else None)
    return seconds_since(end, context.now) if end else 0.0


def _held(context: ReconcileContext, kind: str, item: Object) -> Blocker | None:
    """A deletion that somebody's finalizer holds up."""
    asked = item["metadata"].get("deletionTimestamp")
    if not asked or seconds_since(asked, context.now) < DELETION_S:
        return None
    holders = ", ".join(item["metadata"].get("finalizers") or ()) or "none"
    name, namespace = pod_status.name(item), context.run.metadata.namespace
    return Blocker(
        ConditionReason.DELETION_HANGS,
        f"{kind} {name} is being deleted since {asked} and is still there (finalizers: {holders}); "
        "look whether KubeRay's operator runs, or take the finalizers away: kubectl patch "
        f"{kind.lower()} {name} -n {namespace} --type=merge -p "
        '\'{"metadata":{"finalizers":null}}\'',
    )


def _terminating(
    context: ReconcileContext, builder: PlanBuilder, found: Sequence[Object]
) -> Blocker | None:
    """A pod that outstays its grace period although nothing is wrong with its node."""
    for pod in found:
        late_s = pod_status.overdue_s(pod, context.now)
        if late_s is None or late_s < DELETION_S:
            continue
        name, namespace = pod_status.name(pod), context.run.metadata.namespace
        finalizers = pod["metadata"].get("finalizers")
        if finalizers:
            return _held(context, "Pod", pod)
        if pod_status.all_containers_ended(pod):
            # The kubelet itself says that no process is left; only the object is.
            builder.add_action(Delete(pod_status.pod_ref(pod), grace_s=0))
        return Blocker(
            ConditionReason.POD_TERMINATING,
            f"Pod {name} outstays its grace period for over {round(DELETION_S)} s on node "
            f"{pod_status.node_name(pod)}; look at that node's kubelet, or free the pod: kubectl "
            f"delete pod {name} -n {namespace} --force",
        )
    return None


def _owner_is_gone(context: ReconcileContext, cluster: Object) -> bool:
    if context.unknown("RayJob"):
        return False
    number = cluster["metadata"].get("labels", {}).get(names.ATTEMPT_LABEL, "")
    return not number.isdecimal() or context.job(int(number)) is None


def _delete_ours(
    context: ReconcileContext,
    builder: PlanBuilder,
    kind: str,
    api_version: str,
    owner: str,
    item: Object,
) -> Blocker | None:
    """Delete what its owner has left behind, unless it belongs to somebody else."""
    owners = item["metadata"].get("ownerReferences") or ()
    ours = f"{context.run.metadata.name}-"
    foreign_owner = next(
        (
            known
            for known in owners
            if known.get("kind") != owner or not str(known.get("name", "")).startswith(ours)
        ),
        None,
    )
    if foreign_owner is None:
        builder.add_action(Delete(pod_status.ref(item, api_version, kind)))
        return None
    return Blocker(
        ConditionReason.FOREIGN_OBJECT,
        f"{kind} {pod_status.name(item)} has this run's labels but belongs to "
        f"{foreign_owner.get('kind')} {foreign_owner.get('name')}; delete it, or take the "
        "labels away, and the run goes on",
    )
