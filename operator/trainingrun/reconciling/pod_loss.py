"""Why a pod ended, from its own status and its node's.

Exit codes alone decide nothing: 137 is preemption, drain, node loss and out of memory alike.
"""

from ..api.status import LossReason
from . import pod_status
from .model import NodeState, Object
from .node_health import NODE_GONE_TAINTS, NODE_LEAVING_TAINTS
from .timestamps import parsed

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
    if (pod_status.ray_ending(pod) or {}).get("reason") == "OOMKilled":
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
