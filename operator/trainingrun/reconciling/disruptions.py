"""Machines that vanish: free their pods, so that replacements can come.

Kubernetes keeps pods of a dead node "Running" for minutes and then "Terminating" for ever, and
KubeRay replaces none of them meanwhile. A node is taken for lost only on two independent signs: one
by the control plane (its Lease is stale, NotReady, a taint) and one by the network (Ray no longer
hears from it, its head pod does not answer, a pod outstays its grace period). A Node object that is
gone is enough alone.
"""

from ..api.status import LossReason
from . import evidence, failures, pods
from .draft import Draft
from .model import AvoidNodes, Delete, Manifest, NodeSight
from .scene import RAY_API, Scene

UNREACHABLE_TAINTS = failures.NODE_GONE_TAINTS


def respond(scene: Scene, draft: Draft, attempt: int) -> None:
    """Replace what is on lost nodes and what hangs on a lost head."""
    _lost_nodes(scene, draft, attempt)
    _lost_head(scene, draft, attempt)


def free_stuck_pods(scene: Scene, draft: Draft) -> None:
    """Force-delete pods of ended attempts that a dead kubelet will never let go.

    The next attempt waits until they are gone, so this must work without a driver's word.
    """
    for pod in scene.pods():
        node = pods.node_name(pod)
        sight = scene.observed.nodes.get(node) if node else None
        if sight is None:
            continue
        if not sight.exists or (control_sign(scene, sight) and _outstays(scene, pod)):
            draft.do(Delete(pods.pod_ref(pod), grace_s=0))


def control_sign(scene: Scene, node: NodeSight) -> str | None:
    """What the control plane says against the node, in words."""
    if not node.exists:
        return "its Node object is gone"
    if not node.ready:
        return "it is NotReady"
    taint = next((taint for taint in node.taints if taint in UNREACHABLE_TAINTS), None)
    if taint:
        return f"it has taint {taint}"
    if node.lease_age_s is not None and node.lease_age_s > scene.settings.lease_stale_s:
        return "its Lease is no longer renewed"
    return None


def network_sign(scene: Scene, attempt: int, node: str) -> str | None:
    """What the network says against the node, in words."""
    word = scene.live_word(attempt)
    if word and node in word.lost_nodes:
        return "Ray no longer hears from it"
    here = [pod for pod in scene.pods(attempt) if pods.node_name(pod) == node]
    failing = scene.observed.progress_failing_s
    if (
        failing is not None
        and failing >= scene.settings.head_silent_s
        and any(pods.is_head(pod) and pods.phase(pod) == "Running" for pod in here)
    ):
        return "the head pod on it does not answer"
    if any(_outstays(scene, pod) for pod in here):
        return "a pod on it outstays its grace period"
    return None


def _outstays(scene: Scene, pod: Manifest) -> bool:
    late = pods.overdue_s(pod, scene.now)
    return late is not None and late >= scene.settings.terminating_late_s


def _lost_nodes(scene: Scene, draft: Draft, attempt: int) -> None:
    here: dict[str, list[Manifest]] = {}
    for pod in scene.pods(attempt):
        node = pods.node_name(pod)
        if node and not pods.ended(pod):
            here.setdefault(node, []).append(pod)
    lost: dict[str, str] = {}
    for node in sorted(here):
        sight = scene.observed.nodes.get(node)
        control = control_sign(scene, sight) if sight else None
        network = network_sign(scene, attempt, node) if control else None
        if sight and control and (network or not sight.exists):
            lost[node] = " and ".join(filter(None, (control, network)))
    if not lost:
        return
    # The avoidance first: a replacement that lands on the dead node, which still looks Ready for
    # most of a minute, waits for ever.
    for cluster in scene.clusters(attempt):
        draft.do(AvoidNodes(pods.ref(cluster, RAY_API, "RayCluster"), tuple(lost)))
    for node, signs in lost.items():
        evidence.lose_node(scene, draft, attempt, node, f"Node {node} is lost: {signs}")
        draft.do(*(Delete(pods.pod_ref(pod), grace_s=0) for pod in here[node]))


def _lost_head(scene: Scene, draft: Draft, attempt: int) -> None:
    """Replace the workers together with their head.

    Left alone they would wait for the old head's address first, and be replaced only then. KubeRay
    makes the head before the workers, so a worker that is older than its head is a lost one's.
    """
    if draft.ledger.head is None or draft.ledger.end_seen or scene.taken_back(attempt):
        return
    head = scene.head(attempt)
    if head is not None and pods.leaving(head) and not _forced(head):
        return  # it leaves in peace, and its workers get their notice through it
    headless = head is None or pods.ended(head) or pods.leaving(head)
    head_born = pods.created(head) if head else None
    for pod in scene.pods(attempt):
        if pods.is_head(pod) or (pods.leaving(pod) and _forced(pod)):
            continue
        born = pods.created(pod)
        if headless or (born is not None and head_born is not None and born < head_born):
            draft.do(Delete(pods.pod_ref(pod), grace_s=0))
            evidence.explain(draft, pod, LossReason.HEAD_LOST, scene.now)


def _forced(pod: Manifest) -> bool:
    return bool(pod["metadata"].get("deletionGracePeriodSeconds") == 0)
