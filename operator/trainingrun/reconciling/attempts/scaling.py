"""How many worker pods KubeRay keeps of an attempt that can lack some: with `workers.minimum`, or
with `workers.standby`.

KubeRay submits the driver once every pod that the RayCluster asks for is ready, and for none that
finds no node does it go ahead. So the RayCluster asks for all of them first. Where some are missing
for long and as many are ready as the training needs, it asks for those alone, and for all again
once the driver is submitted: KubeRay then waits for nothing any more, and the pods that come later
join the training, or wait.

What is wanted follows from the RayJob's state and the pods alone, whatever was done before. Which
pods KubeRay deletes is said with their number, since it would else choose any.

Not only the minimum is rendered: each run with enough nodes would begin small and restart. Nor have
standby pods a group of their own: one that has taken a worker's place would have to change groups.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from ...api.status import Attempt
from .. import pod_status
from ..context import RAY_API, ReconcileContext
from ..findings import Findings, StatusDraft
from ..model import Object, ScaleWorkers

UNSCHEDULABLE_S = 10.0
"""How long a start waits for a pod for which the scheduler has found no node: another run's may
just be going. A pod that has a node, or is not made yet, has `workers.resizeSeconds`."""

ARRIVAL_S = 5.0
"""How long a start waits for the next pod after one became ready: nodes that are added for them
come one by one."""


def scale(context: ReconcileContext, draft: StatusDraft, attempt: Attempt) -> Findings:
    """Ask for fewer worker pods while the driver waits for them, and for all once it is there."""
    if (
        not context.can_lack_pods
        or context.unknown("RayJob", "RayCluster", "Pod")
        or context.suspended_by_queue(attempt.number)
        or draft.bookkeeping.end_seen
    ):
        return Findings()
    job, cluster = context.job(attempt.number), context.cluster(attempt.number)
    if job is None or cluster is None or not context.worker_group(attempt.number):
        return Findings()
    match (job.get("status") or {}).get("jobDeploymentStatus"):
        case "Running":
            return _all(context, draft, attempt.number, cluster)
        case "Initializing":
            return _those_that_are_ready(context, attempt.number, cluster)
    return Findings()


def _all(context: ReconcileContext, draft: StatusDraft, number: int, cluster: Object) -> Findings:
    """Every pod, and no deletion of what is gone."""
    wanted, known = context.all_pods(draft) - 1, context.removed_pods(number)
    left = tuple(name for name in known if name in context.index(number).by_name)
    if context.worker_group(number).get("replicas") == wanted and left == known:
        return Findings()
    action = ScaleWorkers(pod_status.ref(cluster, RAY_API, "RayCluster"), wanted, left)
    return Findings(actions=(action,))


def _those_that_are_ready(context: ReconcileContext, number: int, cluster: Object) -> Findings:
    """The pods that are ready, where they are enough and no other one is waited for any longer."""
    head, index = context.head(number), context.index(number)
    ready = len(index.ready_workers)
    asked = context.worker_group(number).get("replicas") or 0
    if (
        head is None
        or not pod_status.ready(head)
        or ready < context.run.spec.minimum_worker_pods
        or ready >= asked
    ):
        return Findings()
    others = [
        pod
        for pod in index.all
        if not pod_status.is_head(pod) and pod_status.name(pod) not in index.ready_workers
    ]
    ready_pods = [pod for pod in index.all if pod_status.name(pod) in index.ready_workers]
    until = max(
        *_awaited_until(context, cluster, others, asked - ready),
        _arrivals_until(context, ready_pods),
    )
    wait_s = (until - context.now).total_seconds()
    if wait_s > 0:
        return Findings(requeue_within_s=wait_s)
    # Of the version that was read: where a pod became ready meanwhile, KubeRay may have submitted.
    action = ScaleWorkers(
        pod_status.ref(cluster, RAY_API, "RayCluster"),
        ready,
        tuple(sorted(pod_status.name(pod) for pod in others)),
        cluster["metadata"].get("resourceVersion"),
    )
    return Findings(actions=(action,))


def _arrivals_until(context: ReconcileContext, ready: Sequence[Object]) -> datetime:
    """Until when another pod may become ready right after the last one, for `resizeSeconds` from
    the time at which there were enough.
    """
    times = sorted(time for pod in ready if (time := pod_status.ready_since(pod)) is not None)
    if len(times) < len(ready):
        return context.now
    enough = times[context.run.spec.minimum_worker_pods - 1]
    patience = timedelta(seconds=context.run.spec.workers.resize_seconds)
    return min(times[-1] + timedelta(seconds=ARRIVAL_S), enough + patience)


def _awaited_until(
    context: ReconcileContext, cluster: Object, others: Sequence[Object], missing: int
) -> Iterator[datetime]:
    """Until when the start waits for each pod that is not ready."""
    patience = timedelta(seconds=context.run.spec.workers.resize_seconds)
    for pod in others:
        until = (pod_status.created(pod) or context.now) + patience
        since = pod_status.unschedulable_since(pod)
        if since is not None:
            until = min(until, since + timedelta(seconds=UNSCHEDULABLE_S))
        yield until
    if len(others) < missing:
        yield (pod_status.created(cluster) or context.now) + patience
