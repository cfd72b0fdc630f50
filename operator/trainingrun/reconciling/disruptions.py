"""Machines that vanish: free their pods, so that replacements can come.

Kubernetes keeps pods of a dead node "Running" for minutes and then "Terminating" for ever, and
KubeRay replaces none of them meanwhile. A node is taken for lost only on two independent signs: one
by the control plane (its Lease is stale, NotReady, a taint) and one by the network (Ray no longer
hears from it, its head pod does not answer, a pod outstays its grace period). A Node object that is
gone is enough alone.
"""

from . import evidence, exclusions, pods
from .draft import Draft
from .model import Delete, Manifest, NodeSight
from .node_signs import control_sign
from .scene import Scene

STUCK_POD_S = 600.0
"""How long a pod of an ended attempt may outstay its grace period on a node that is well before it
is force-deleted. Should a process of it live on, it finds the lease taken and stops."""


def lost_nodes(scene: Scene, draft: Draft, attempt: int) -> dict[str, list[Manifest]]:
    """Count the nodes that are lost; with the pods on each that did not end."""
    if scene.unknown("Node", "Pod"):
        return {}
    index = scene.index(attempt)
    signs: dict[str, str] = {}
    for node in sorted(scene.observed.nodes):
        sight = scene.observed.nodes[node]
        control = control_sign(scene, sight)
        if control is None or node not in index.by_node:
            continue
        network = network_sign(scene, attempt, sight)
        if network or not sight.exists:
            signs[node] = " and ".join(filter(None, (control, network)))
    lost = {
        node: here
        for node in signs
        if (here := [pod for pod in index.by_node[node] if not pods.ended(pod)])
    }
    if lost:
        evidence.lose_nodes(scene, draft, attempt, {node: signs[node] for node in lost})
    return lost


def respond(scene: Scene, draft: Draft, attempt: int, lost: dict[str, list[Manifest]]) -> None:
    """Replace what is on lost nodes and what hangs on a lost head."""
    # The exclusion first: a replacement that lands on the dead node, which still looks Ready for
    # most of a minute, waits for ever.
    exclusions.keep_off(scene, draft, attempt)
    for here in lost.values():
        draft.do(*(Delete(pods.pod_ref(pod), grace_s=0) for pod in here))
    _lost_head(scene, draft, attempt)


def free_stuck_pods(scene: Scene, draft: Draft) -> None:
    """Force-delete pods of ended attempts that a kubelet will never let go.

    The next attempt waits until they are gone, so this must work without a driver's word.
    """
    for pod in scene.pods():
        if not pods.leaving(pod):
            sight = scene.node(pods.node_name(pod))
            if sight is not None and not sight.exists:
                draft.do(Delete(pods.pod_ref(pod), grace_s=0))
        elif _will_never_go(scene, pod):
            draft.do(Delete(pods.pod_ref(pod), grace_s=0))


def _will_never_go(scene: Scene, pod: Manifest) -> bool:
    late = pods.overdue_s(pod, scene.now) or 0.0
    if late >= STUCK_POD_S:
        return True
    sight = scene.node(pods.node_name(pod))
    if sight is None:
        return False
    return not sight.exists or bool(control_sign(scene, sight) and outstays(scene, pod))


def network_sign(scene: Scene, attempt: int, node: NodeSight) -> str | None:
    """What the network says against the node, in words."""
    lost = scene.lost_by_ray(attempt)
    if lost and (node.name in lost or node.hostname in lost):
        return "Ray no longer hears from it"
    here = scene.index(attempt).by_node.get(node.name, ())
    failing = scene.observed.progress_failing_s
    # Polls that never worked say nothing: a NetworkPolicy or a wrong token keeps them out.
    if (
        failing is not None
        and failing >= scene.settings.head_silent_s
        and scene.live_word(attempt) is not None
        and any(pods.is_head(pod) and pods.phase(pod) == "Running" for pod in here)
    ):
        return "the head pod on it does not answer"
    if any(outstays(scene, pod) for pod in here):
        return "a pod on it outstays its grace period"
    return None


def outstays(scene: Scene, pod: Manifest) -> bool:
    """Whether a pod is still there well after its grace period."""
    late = pods.overdue_s(pod, scene.now)
    return late is not None and late >= scene.settings.terminating_late_s


def _lost_head(scene: Scene, draft: Draft, attempt: int) -> None:
    """Replace the workers together with their head.

    Left alone they would wait for the old head's address first, and be replaced only then. Ray
    begins in a worker once a head answers, so one in which it began before its head was created
    hangs on a lost one.
    """
    if draft.ledger.head is None or draft.ledger.end_seen or scene.taken_back(attempt):
        return
    if scene.unknown("Pod"):
        return  # a head that is missing here may be there
    head, index = scene.head(attempt), scene.index(attempt)
    if head is not None and pods.leaving(head) and not _forced(head):
        return  # it leaves in peace, and its workers get their notice through it
    headless = head is None or pods.ended(head) or pods.leaving(head)
    head_created = str(head["metadata"].get("creationTimestamp") or "") if head else ""
    if not headless and not "" < index.oldest_worker < head_created:
        return
    found = []
    for pod in index.all:
        if pods.is_head(pod) or (pods.leaving(pod) and _forced(pod)):
            continue
        if headless or "" < pods.joined(pod) < head_created:
            draft.do(Delete(pods.pod_ref(pod), grace_s=0))
            found.append(pod)
    if found:
        evidence.explain_by_the_head(scene, draft, found)


def _forced(pod: Manifest) -> bool:
    return bool(pod["metadata"].get("deletionGracePeriodSeconds") == 0)
