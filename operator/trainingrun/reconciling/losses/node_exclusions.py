"""Which nodes pods exclude after a loss, and when an exclusion ends.

A lost node may stay Ready for most of a minute, and a replacement there would wait for a kubelet
that is gone. The exclusion ends when the node's kubelet is known to run again, when pods find
no node because of it, or after a while: a cluster may have no other node.
"""

from ...api.status import LossReason
from ...rendering import scheduling
from .. import pod_status
from ..bookkeeping import Bookkeeping
from ..context import RAY_API, ReconcileContext
from ..findings import Draft, Findings
from ..model import Delete, ExcludeNodes, Object
from ..timestamps import seconds_since
from . import evidence
from .node_health import HEALTHY_S, control_sign, well_since

EXCLUSION_S = 600.0
"""How long pods exclude a lost node of which nothing is known."""

MOST_EXCLUDED = 100
"""Nodes in one exclusion, the newest losses: every pod carries the list."""


def lift(context: ReconcileContext, draft: Draft, attempt: int | None = None) -> Findings:
    """End the exclusion of nodes that are back, that pods need, or that were excluded for long."""
    lost = draft.bookkeeping.lost_nodes
    if not lost:
        return Findings()
    pressed = attempt is not None and any(
        pod_status.unschedulable(pod) for pod in context.index(attempt).unwell
    )
    kept = {node: time for node, time in lost.items() if _excluded(context, node, time, pressed)}
    if len(kept) == len(lost):
        return Findings()
    hostnames = {node: name for node, name in draft.bookkeeping.hostnames.items() if node in kept}
    back = [node for node in lost if node not in kept]
    found = evidence.reopen_nodes(context, draft, back)
    changes = {**found.bookkeeping, "lost_nodes": kept, "hostnames": hostnames}
    return found._replace(bookkeeping=changes)


def hostnames(bookkeeping: Bookkeeping) -> tuple[str, ...]:
    """The hostnames that pods exclude now."""
    lost = bookkeeping.lost_nodes
    newest = sorted(lost, key=lambda node: lost[node])[-MOST_EXCLUDED:]
    return tuple(sorted({bookkeeping.hostnames.get(node, node) for node in newest}))


def exclude_nodes(context: ReconcileContext, draft: Draft, attempt: int) -> Findings:
    """Patch the live RayCluster where it excludes other nodes, and replace pods that wait."""
    if context.unknown("RayCluster", "Pod"):
        return Findings()
    wanted = hostnames(draft.bookkeeping)
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
    found = evidence.explain(context, draft, outdated, LossReason.NODE_LOST)
    deletions = (Delete(pod_status.pod_ref(pod)) for pod in outdated)
    return found._replace(actions=(*patches, *deletions))


def _excludes_more(pod: Object, wanted: tuple[str, ...]) -> bool:
    return bool(scheduling.excluded(pod["spec"].get("affinity")) - set(wanted))


def _excluded(context: ReconcileContext, node: str, time: str, pressed: bool) -> bool:
    age_s = seconds_since(time, context.now)
    if age_s >= EXCLUSION_S:
        return False
    node_state = context.node(node)
    if node_state is None:
        return not (pressed and age_s >= HEALTHY_S)
    if well_since(context, node_state, age_s):
        return False
    # A dead node's Lease is stale by now, so that a node without a sign against it is back.
    patience_s = 2 * context.settings.lease_stale_s
    return not (pressed and age_s > patience_s and control_sign(context, node_state) is None)
