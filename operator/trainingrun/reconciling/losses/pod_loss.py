"""Why a pod ended, from its own status and its node's; and pods in which Ray alone has ended.

Exit codes alone decide nothing: 137 is preemption, drain, node loss and out of memory alike.
"""

from datetime import timedelta

from ...api.status import LossReason
from .. import pod_status
from ..context import ReconcileContext
from ..findings import Findings
from ..model import Delete, NodeState, Object
from ..timestamps import parsed
from . import out_of_memory
from .node_health import NODE_GONE_TAINTS, NODE_LEAVING_TAINTS, control_sign

NODE_GOING = frozenset({"Terminated", "Shutdown", "NodeShutdown", "Preempting"})
"""Pod status reasons of a kubelet that evicts pods or shuts down: not a sudden loss."""

NEVER_RAN = frozenset(
    {"NodeAffinity", "UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods"}
)
"""Pod status reasons of a kubelet that refused the pod, often after its node was created anew."""

KILLED = frozenset({137, 143})
"""Exit codes of a process that was killed from outside."""


def why_pod_ended(pod: Object, node: NodeState | None) -> LossReason | None:
    """Why the pod ended or is about to; None: it continues.

    The first sign that holds decides. The pod's own status comes before its node's,
    which may have changed since.
    """
    endings = list(pod_status.terminations(pod))
    if out_of_memory.ended(pod):
        return LossReason.OUT_OF_MEMORY
    status_reason = pod.get("status", {}).get("reason")
    disruption = pod_status.condition(pod, "DisruptionTarget")
    if disruption and disruption.get("status") == "True":
        if disruption.get("reason") in ("DeletionByTaintManager", "DeletionByPodGC"):
            return LossReason.NODE_LOST
        return LossReason.EVICTED if status_reason == "Evicted" else LossReason.PREEMPTED
    if status_reason in NODE_GOING:
        return LossReason.PREEMPTED
    if status_reason == "NodeLost":
        return LossReason.NODE_LOST
    if status_reason == "Evicted":
        return LossReason.EVICTED
    if status_reason in NEVER_RAN:
        return LossReason.INFRASTRUCTURE_ERROR
    if pod_status.terminating(pod) and not _died_before_deletion(pod, endings):
        return LossReason.PREEMPTED
    if not pod_status.ended(pod) and not endings:
        return None
    killed = any(ending.get("exitCode") in KILLED for ending in endings) or not endings
    if killed and node is not None and (not node.exists or not node.ready or _taken(node)):
        return LossReason.NODE_LOST
    # The main process of every pod is Ray's own: the training code runs below it, and what goes
    # wrong there is in the driver's progress, never in a pod's exit code.
    return LossReason.HEAD_LOST if pod_status.is_head(pod) else LossReason.WORKER_LOST


def _died_before_deletion(pod: Object, endings: list[Object]) -> bool:
    """Whether KubeRay deletes a pod that had ended by itself."""
    deleted_at = pod_status.deletion_requested_at(pod)
    finished = [parsed(end["finishedAt"]) for end in endings if end.get("finishedAt")]
    return deleted_at is not None and bool(finished) and max(finished) <= deleted_at


def _taken(node: NodeState) -> bool:
    return any(taint in NODE_GONE_TAINTS | NODE_LEAVING_TAINTS for taint in node.taints)


def replace_pods_without_ray(context: ReconcileContext, attempt: int) -> Findings:
    """Force-delete worker pods in which Ray has ended and the container has not, so that KubeRay
    replaces them.

    A raylet ends with its agent (Ray's agent_manager.cc), for example one that the kernel kills for
    memory, and `ray start --block` does not always end with it. The pod stays Running, no worker
    group can be placed, and KubeRay's liveness probe ends the pod ten minutes later. Two
    independent signs are enough before: the driver's, to which Ray reports the node as dead, and
    the kubelet's, whose readiness probe of Ray's agent fails and did not before.

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


def describe(reason: LossReason, *, head: bool = False) -> str:
    """Why a pod, the head or a worker's, ended: for a sentence that begins with the pod."""
    return {
        LossReason.PREEMPTED: "it was deleted or drained",
        LossReason.EVICTED: "it was evicted from its node",
        LossReason.NODE_LOST: "its node was lost",
        LossReason.HEAD_LOST: "the head was lost",
        LossReason.WORKER_LOST: "it died without notice",
        LossReason.INFRASTRUCTURE_ERROR: "its node refused it",
        LossReason.OUT_OF_MEMORY: out_of_memory.description(head=head),
    }[reason]
