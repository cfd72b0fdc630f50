"""When a node counts as lost, which pods are replaced, and which nodes pods then exclude.

Kubernetes keeps pods of a dead node "Running" for minutes and then "Terminating" without end, and
KubeRay replaces none of them meanwhile. A node counts as lost only on two independent signs: one
by the control plane (its Lease is stale, NotReady, a taint) and one by the network (Ray reports it
as lost, its head pod does not answer, a pod outstays its grace period). A Node object that is
gone is enough alone.

The Lease of a node against which a sign other than the control plane's is (`suspect_nodes`) is
read: the Node object shows the loss most of a minute later. So are the Leases of nodes that were
lost and are Ready: a renewal since proves that they are back. Others are never read: each is
renewed every 10 s.

A lost node may stay Ready for most of a minute, and a replacement there would wait for a kubelet
that is gone. Its exclusion ends when its kubelet is known to run again, when pods find no node
because of it, or after a while: a cluster may have no other node.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from ...api.status import LossReason
from ...rendering import scheduling
from ...rendering.platforms import RenderSettings
from .. import pod_status
from ..bookkeeping import Bookkeeping
from ..context import RAY_API, ReconcileContext
from ..findings import Findings, StatusDraft
from ..model import Delete, ExcludeNodes, NodeState, Object, Observed, ReconcileSettings
from ..texts import parsed, seconds_since
from . import avoided_nodes, evidence
from .signs import HEALTHY_S, control_sign, well_since

STUCK_POD_S = 600.0
"""How long a pod of an ended attempt may outstay its grace period on a ready node before it
is force-deleted. Should a process of it live on, it finds the lease taken and stops."""


EXCLUSION_S = 600.0
"""How long pods exclude a lost node of which nothing is known."""

SEEN_BY_KUBERAY_S = 4.0
"""Age of a pod at which KubeRay has seen it; Kubernetes writes whole seconds."""

MOST_EXCLUDED = 100
"""Nodes in one exclusion, the newest losses: every pod carries the list."""


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


def replace_pods(context: ReconcileContext, lost: Mapping[str, LostNode]) -> Findings:
    """Force-delete the pods on lost nodes, so that KubeRay replaces them.

    One that was just created stays for a moment. KubeRay may create it before it has seen the
    exclusion; if it were gone before KubeRay has seen it, KubeRay would wait for it, and create
    another one only when it reads the RayCluster again, five minutes later.
    """
    pods = [pod for node in lost.values() for pod in node.pods]
    seen = [pod for pod in pods if _age_s(context, pod) >= SEEN_BY_KUBERAY_S]
    return Findings(
        actions=tuple(Delete(pod_status.pod_ref(pod), grace_s=0) for pod in seen),
        requeue_within_s=None if len(seen) == len(pods) else 1.0,
    )


def _age_s(context: ReconcileContext, pod: Object) -> float:
    created = pod_status.created(pod)
    return (context.now - created).total_seconds() if created else SEEN_BY_KUBERAY_S


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


def replace_pods_without_ray(context: ReconcileContext, attempt: int) -> Findings:
    """Force-delete worker pods in which Ray has ended and the container has not, so that KubeRay
    replaces them.

    A raylet ends with its agent (Ray's agent_manager.cc), for example one that the kernel kills for
    memory, and `ray start --block` does not always end with it. The pod stays Running, no worker
    group can be placed, and KubeRay's liveness probe ends the pod ten minutes later. Two
    independent signs are enough before: the driver's, to which Ray reports the node as dead, and
    the kubelet's, whose readiness probe of Ray's agent fails and did not before: both within 30 s.

    With a grace period they would count as preempted; the driver's record of their loss is counted.
    """
    if (
        not context.lost_by_ray(attempt)
        or context.unknown("Node", "Pod")
        or context.suspended_by_queue(attempt)
    ):
        return Findings()
    left = [
        pod
        for pod in context.index(attempt).all
        if not pod_status.is_head(pod)
        and _no_longer_ready(pod)
        and (node := context.node(pod_status.node_name(pod))) is not None
        and context.is_lost_by_ray(attempt, node)
        and not control_sign(context, node)  # else the node itself may be lost
    ]
    return Findings(actions=tuple(Delete(pod_status.pod_ref(pod), grace_s=0) for pod in left))


def replace_pods_with_hung_process(context: ReconcileContext, attempt: int) -> Findings:
    """Force-delete worker pods in which the driver could not end the process of a hung rank.

    KubeRay replaces them. The driver's record of the hang is counted.
    """
    progress = context.live_progress(attempt)
    if progress is None or context.unknown("Pod") or context.suspended_by_queue(attempt):
        return Findings()
    named = (context.index(attempt).by_name.get(name) for name in progress.stuck_pods)
    stuck = [
        pod for pod in named if pod and not pod_status.is_head(pod) and not pod_status.ended(pod)
    ]
    return Findings(actions=tuple(Delete(pod_status.pod_ref(pod), grace_s=0) for pod in stuck))


def _no_longer_ready(pod: Object) -> bool:
    """Whether Ray's container runs and is not ready, but was.

    A pod is not Ready before its containers start. If that changed after they did, it was Ready
    in between. Kubernetes writes whole seconds.
    """
    ready, container = pod_status.condition(pod, "Ready"), pod_status.ray_container(pod)
    if ready is None or container is None or not pod_status.running(pod):
        return False
    started = ((container.get("state") or {}).get("running") or {}).get("startedAt")
    changed = ready.get("lastTransitionTime")
    return (
        ready.get("status") == "False"
        and container.get("ready") is False
        and bool(started and changed)
        and parsed(changed) - parsed(started) > timedelta(seconds=1)
    )


def replace_workers_of_lost_head(
    context: ReconcileContext, draft: StatusDraft, attempt: int
) -> Findings:
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
    if context.unknown("Pod", "RayCluster"):
        return Findings()  # a head that is missing here may exist, or be named
    head, index = context.head(attempt), context.index(attempt)
    if head is not None and pod_status.terminating(head) and not _forced(head):
        return Findings()  # it is deleted gracefully, and its workers get their notice through it
    if head is None and not context.is_absent_for_certain("Pod"):
        return Findings()
    headless = context.head_is_gone(attempt)
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
    findings = evidence.explain(context, draft, workers, LossReason.HEAD_LOST)
    deletions = (Delete(pod_status.pod_ref(pod), grace_s=0) for pod in workers)
    return findings._replace(actions=tuple(deletions))


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


def lift_exclusion(
    context: ReconcileContext, draft: StatusDraft, attempt: int | None = None
) -> Findings:
    """End the exclusion of nodes that are back, that pods need, or that were excluded for long."""
    lost = draft.bookkeeping.lost_nodes
    if not lost:
        return Findings()
    pressed = attempt is not None and any(
        pod_status.unschedulable(pod) for pod in context.index(attempt).unwell
    )
    holding = context.index(attempt).by_node if attempt is not None else {}
    kept = {
        node: time
        for node, time in lost.items()
        if _excluded(context, node, time, pressed, holds_pods=node in holding)
    }
    if len(kept) == len(lost):
        return Findings()
    hostnames = {node: name for node, name in draft.bookkeeping.hostnames.items() if node in kept}
    back = [node for node in lost if node not in kept]
    findings = evidence.reopen_nodes(context, draft, back)
    changes = {**findings.bookkeeping, "lost_nodes": kept, "hostnames": hostnames}
    return findings._replace(bookkeeping=changes)


def excluded_hostnames(bookkeeping: Bookkeeping) -> tuple[str, ...]:
    """The hostnames that pods exclude now."""
    lost = bookkeeping.lost_nodes
    newest = sorted(lost, key=lambda node: lost[node])[-MOST_EXCLUDED:]
    names = {bookkeeping.hostnames.get(node, node) for node in newest}
    return tuple(sorted(names | avoided_nodes.hostnames(bookkeeping)))


def exclude_nodes(context: ReconcileContext, draft: StatusDraft, attempt: int) -> Findings:
    """Patch the live RayCluster where it excludes other nodes, and replace pods that wait."""
    if context.unknown("RayCluster", "Pod"):
        return Findings()
    wanted = excluded_hostnames(draft.bookkeeping)
    patches = tuple(
        ExcludeNodes(pod_status.ref(cluster, RAY_API, "RayCluster"), wanted)
        for cluster in context.clusters(attempt)
        if not pod_status.terminating(cluster)
        and scheduling.excluded_by_cluster(cluster) != set(wanted)
    )
    # A pod that is pending with an older list stays so: KubeRay replaces it with the present one.
    outdated = [
        pod
        for pod in context.index(attempt).unwell
        if pod_status.unschedulable(pod)
        and not pod_status.terminating(pod)
        and _excludes_more(pod, wanted)
    ]
    if not outdated:
        return Findings(actions=patches)
    findings = evidence.explain(context, draft, outdated, LossReason.NODE_LOST)
    # It may have got a node meanwhile, of which the operator's watch is late to know.
    deletions = (
        Delete(pod_status.pod_ref(pod), unchanged_since=pod["metadata"].get("resourceVersion"))
        for pod in outdated
    )
    return findings._replace(actions=(*patches, *deletions))


def _excludes_more(pod: Object, wanted: tuple[str, ...]) -> bool:
    return bool(scheduling.excluded(pod["spec"].get("affinity")) - set(wanted))


def _excluded(
    context: ReconcileContext, node: str, time: str, pressed: bool, *, holds_pods: bool
) -> bool:
    age_s, node_state = seconds_since(time, context.now), context.node(node)
    if age_s >= EXCLUSION_S:
        # A pod on it that cannot be deleted would show the same loss once more.
        return holds_pods and (node_state is None or control_sign(context, node_state) is not None)
    if node_state is None:
        return not (pressed and age_s >= HEALTHY_S)
    if well_since(context, node_state, age_s):
        return False
    # A dead node's Lease is stale by now, so that a node without a sign against it is back.
    patience_s = 2 * context.settings.lease_stale_s
    return not (pressed and age_s > patience_s and control_sign(context, node_state) is None)
