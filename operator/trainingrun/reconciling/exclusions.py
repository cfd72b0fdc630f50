"""Nodes that pods keep off after a loss, and when they may come back.

A lost node may look well for most of a minute, and a replacement there would wait for a kubelet
that is gone. The exclusion ends when the node is proven well again, when pods find no node because
of it, or after a while: a cluster may have no other node.
"""

from ..rendering import affinities
from . import evidence, pods
from .draft import Draft
from .model import AvoidNodes, Delete, Manifest
from .moments import seconds_since
from .node_signs import LOOKS_WELL_S, control_sign, well_since
from .scene import RAY_API, Scene

AVOID_S = 600.0
"""How long pods keep off a lost node of which nothing is known."""

MOST_EXCLUDED = 100
"""Nodes in one exclusion, the newest losses: every pod carries the list."""


def lift(scene: Scene, draft: Draft, attempt: int | None = None) -> None:
    """Forget lost nodes that are well again, that pods need, or that have been avoided for long."""
    lost = draft.ledger.lost_nodes
    if not lost:
        return
    pressed = attempt is not None and any(
        pods.unschedulable(pod) for pod in scene.index(attempt).unwell
    )
    kept = {node: time for node, time in lost.items() if _excluded(scene, node, time, pressed)}
    if len(kept) == len(lost):
        return
    hostnames = {node: name for node, name in draft.ledger.hostnames.items() if node in kept}
    draft.note(lost_nodes=kept, hostnames=hostnames)
    evidence.reopen_nodes(scene, draft, [node for node in lost if node not in kept])


def hostnames(draft: Draft) -> tuple[str, ...]:
    """The hostnames that pods keep off now."""
    lost = draft.ledger.lost_nodes
    newest = sorted(lost, key=lambda node: lost[node])[-MOST_EXCLUDED:]
    return tuple(sorted({draft.ledger.hostnames.get(node, node) for node in newest}))


def keep_off(scene: Scene, draft: Draft, attempt: int) -> None:
    """Bring the live RayCluster in line with what is excluded, where it differs."""
    if scene.unknown("RayCluster", "Pod"):
        return
    wanted = hostnames(draft)
    for cluster in scene.clusters(attempt):
        if not pods.leaving(cluster) and affinities.excluded_by_cluster(cluster) != set(wanted):
            draft.do(AvoidNodes(pods.ref(cluster, RAY_API, "RayCluster"), wanted))
    # What waits with an older list would wait for ever: KubeRay makes it anew with the present one.
    outdated = [
        pod
        for pod in scene.index(attempt).unwell
        if pods.unschedulable(pod) and not pods.leaving(pod) and _excludes_more(pod, wanted)
    ]
    if outdated:
        draft.do(*(Delete(pods.pod_ref(pod)) for pod in outdated))
        evidence.explain_as_rescheduled(scene, draft, outdated)


def _excludes_more(pod: Manifest, wanted: tuple[str, ...]) -> bool:
    return bool(affinities.excluded(pod["spec"].get("affinity")) - set(wanted))


def _excluded(scene: Scene, node: str, time: str, pressed: bool) -> bool:
    age_s = seconds_since(time, scene.now)
    if age_s >= AVOID_S:
        return False
    sight = scene.node(node)
    if sight is None:
        return not (pressed and age_s >= LOOKS_WELL_S)
    if well_since(scene, sight, age_s):
        return False
    # A dead node's Lease is stale by now, so that nothing speaks against one that looks well.
    patience_s = 2 * scene.settings.lease_stale_s
    return not (pressed and age_s > patience_s and control_sign(scene, sight) is None)
