"""When a node counts as lost, and how the pods on it are replaced.

Kubernetes keeps pods of a dead node "Running" for minutes and then "Terminating" without end, and
KubeRay replaces none of them meanwhile. A node counts as lost only on two independent signs: one
by the control plane (its Lease is stale, NotReady, a taint) and one by the network (Ray reports it
as lost, its head pod does not answer, a pod outstays its grace period). A Node object that is
gone is enough alone.

The Lease of a node against which a sign other than the control plane's is (`suspect_nodes`) is
read: the Node object shows the loss most of a minute later. So are the Leases of nodes that were
lost and are Ready: a renewal since proves that they are back. Others are never read: each is
renewed every 10 s.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from ...api.status import LossReason
from ...rendering.platforms import RenderSettings
from .. import pod_status
from ..context import ReconcileContext
from ..findings import Draft, Findings
from ..model import Delete, NodeState, Object, Observed, ReconcileSettings
from . import evidence
from .node_health import control_sign

STUCK_POD_S = 600.0
"""How long a pod of an ended attempt may outstay its grace period on a ready node before it
is force-deleted. Should a process of it live on, it finds the lease taken and stops."""


class LostNode(NamedTuple):
    """A node that counts as lost."""

    signs: str
    """Why, in a phrase."""
    pods: list[Object]
    """The attempt's pods on it that have not ended."""


def lost_nodes(context: ReconcileContext, attempt: int) -> dict[str, LostNode]:
    """The lost nodes, by name, that hold pods of the attempt."""
    if context.unknown("Node", "Pod"):
        return {}
    index = context.index(attempt)
    lost: dict[str, LostNode] = {}
    for name in sorted(context.observed.nodes):
        node = context.observed.nodes[name]
        control = control_sign(context, node)
        if control is None or name not in index.by_node:
            continue
        network = network_sign(context, attempt, node)
        if not network and (node.exists or not context.is_absent_for_certain("Node")):
            continue
        pods = [pod for pod in index.by_node[name] if not pod_status.ended(pod)]
        if pods:
            lost[name] = LostNode(" and ".join(filter(None, (control, network))), pods)
    return lost


def replace_pods(lost: Mapping[str, LostNode]) -> Findings:
    """Force-delete the pods on lost nodes, so that KubeRay replaces them."""
    pods = [pod for node in lost.values() for pod in node.pods]
    return Findings(actions=tuple(Delete(pod_status.pod_ref(pod), grace_s=0) for pod in pods))


def free_stuck_pods(context: ReconcileContext) -> Findings:
    """Force-delete pods of ended attempts that a kubelet will never delete.

    The next attempt waits until they are gone, so this works without a driver's progress.
    """
    stuck = (pod for pod in context.pods_left if _will_never_go(context, pod))
    return Findings(actions=tuple(Delete(pod_status.pod_ref(pod), grace_s=0) for pod in stuck))


def _will_never_go(context: ReconcileContext, pod: Object) -> bool:
    node = context.node(pod_status.node_name(pod))
    if not pod_status.terminating(pod):
        return node is not None and _is_gone(context, node)
    if (pod_status.overdue_s(pod, context.now) or 0.0) >= STUCK_POD_S:
        return True
    if node is None:
        return False
    return bool(control_sign(context, node) and outstays(context, pod)) or _is_gone(context, node)


def _is_gone(context: ReconcileContext, node: NodeState) -> bool:
    return not node.exists and context.is_absent_for_certain("Node")


def network_sign(context: ReconcileContext, attempt: int, node: NodeState) -> str | None:
    """The network's sign that the node is lost, as a phrase; None: there is none."""
    if context.is_lost_by_ray(attempt, node):
        return "Ray gets no heartbeat from it"
    here = context.index(attempt).by_node.get(node.name, ())
    failing = context.observed.progress_failing_s
    # Polls that never worked are no sign: a NetworkPolicy or a wrong token keeps them out.
    if (
        failing is not None
        and failing >= context.settings.head_silent_s
        and context.live_progress(attempt) is not None
        and any(pod_status.is_head(pod) and pod_status.phase(pod) == "Running" for pod in here)
    ):
        return "the head pod on it does not answer"
    if any(outstays(context, pod) for pod in here):
        return "a pod on it outstays its grace period"
    return None


def outstays(context: ReconcileContext, pod: Object) -> bool:
    """Whether a pod is still there well after its grace period."""
    late = pod_status.overdue_s(pod, context.now)
    return late is not None and late >= context.settings.terminating_late_s


def replace_workers_of_lost_head(context: ReconcileContext, draft: Draft, attempt: int) -> Findings:
    """Replace the workers together with their head.

    Otherwise they would wait for the old head's address first, and be replaced only then. Ray
    begins in a worker once a head answers, so a worker in which it began before its head was
    created belongs to a lost one.
    """
    if (
        draft.bookkeeping.head is None
        or draft.bookkeeping.end_seen
        or context.suspended_by_queue(attempt)
    ):
        return Findings()
    if context.unknown("Pod"):
        return Findings()  # a head that is missing here may exist
    head, index = context.head(attempt), context.index(attempt)
    if head is not None and pod_status.terminating(head) and not _forced(head):
        return Findings()  # it is deleted gracefully, and its workers get their notice through it
    if head is None and not context.is_absent_for_certain("Pod"):
        return Findings()
    headless = pod_status.absent(head)
    head_created = str(head["metadata"].get("creationTimestamp") or "") if head else ""
    if not headless and not "" < index.oldest_worker < head_created:
        return Findings()
    workers = [
        pod
        for pod in index.all
        if not pod_status.is_head(pod)
        and not (pod_status.terminating(pod) and _forced(pod))
        and (headless or "" < pod_status.joined(pod) < head_created)
    ]
    if not workers:
        return Findings()
    found = evidence.explain(context, draft, workers, LossReason.HEAD_LOST)
    deletions = (Delete(pod_status.pod_ref(pod), grace_s=0) for pod in workers)
    return found._replace(actions=tuple(deletions))


def _forced(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionGracePeriodSeconds") == 0)


def suspect_nodes(
    observed: Observed, render: RenderSettings, settings: ReconcileSettings, now: datetime
) -> tuple[str, ...]:
    """Names of the nodes whose Lease is to be read, in order; those that the control plane
    already shows as lost need none.
    """
    if not _any_sign(observed):
        return ()
    context = ReconcileContext(observed, render, settings, now)
    return tuple(
        sorted(
            name
            for name in set(_candidates(context))
            if (node := observed.nodes.get(name)) is not None
            and control_sign(context, node) is None
        )
    )


def _any_sign(observed: Observed) -> bool:
    """Whether any node can be a candidate; mostly none is."""
    progress = observed.progress
    return (
        observed.progress_failing_s is not None
        or (progress is not None and bool(progress.lost_nodes))
        or bool(observed.run.status.seen.get("lostNodes"))
        or any(pod_status.terminating(pod) for pod in observed.pods)
    )


def _candidates(context: ReconcileContext) -> Iterator[str]:
    number = context.run.status.attempt
    for name, node in context.observed.nodes.items():
        if network_sign(context, number, node):
            yield name
    yield from context.run.status.seen.get("lostNodes") or ()
    for pod in context.pods_left:
        node_name = pod_status.node_name(pod)
        if node_name is not None and outstays(context, pod):
            yield node_name
