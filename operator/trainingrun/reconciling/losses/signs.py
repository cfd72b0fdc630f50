"""What shows that a node is lost or back, and why a pod ended, from its own status and its node's.

Exit codes alone decide nothing: 137 is preemption, drain, node loss and out of memory alike.
"""

import re

from trainingrun_protocol.failure_rules import MOST_REASONS, FailureFacts

from ...api.status import LossReason
from .. import pod_status
from ..context import ReconcileContext, job_status
from ..model import NodeState, Object
from ..texts import parsed
from . import out_of_memory

NODE_GONE_TAINTS = frozenset(
    {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/out-of-service",
        "node.cloudprovider.kubernetes.io/shutdown",
    }
)
"""Taints of a node that is, or is taken to be, gone."""

NODE_LEAVING_TAINTS = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "cloud.google.com/impending-node-termination",
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "remediator.kubernetes.azure.com/unschedulable",
    }
)
"""Taints of a node that is being taken away."""

HEALTHY_S = 60.0
"""Seconds after which a dead node is no longer Ready: one that is Ready then, and whose Lease is
not known, is back. Kubernetes marks a node NotReady 40 to 50 s after its last heartbeat."""

NODE_GOING = frozenset({"Terminated", "Shutdown", "NodeShutdown", "Preempting"})
"""Pod status reasons of a kubelet that evicts pods or shuts down: not a sudden loss."""

_REFUSED = ("NodeAffinity", "UnexpectedAdmissionError", "OutOf")
"""Begins of pod status reasons of a kubelet that refused the pod, often after its node has begun
anew. `OutOf` is followed by the resource, such as nvidia.com/gpu (Kubernetes'
pkg/kubelet/lifecycle/predicate.go)."""

KILLED = frozenset({137, 143})
"""Exit codes of a process that was killed from outside."""


_EXIT_CODE = re.compile(r"exit code (-?\d+)")
"""In RayJob's status.message, before any line of the driver: KubeRay reports it nowhere else."""


def control_sign(context: ReconcileContext, node: NodeState) -> str | None:
    """The control plane's sign that the node is lost, as a phrase; None: there is none."""
    if not node.exists:
        return "its Node object is gone"
    if not node.ready:
        return "it is NotReady"
    if node.taints:
        taint = next((taint for taint in node.taints if taint in NODE_GONE_TAINTS), None)
        if taint:
            return f"it has taint {taint}"
    if node.lease_age_s is not None and node.lease_age_s > context.settings.lease_stale_s:
        return None if context.unknown("Lease") else "its Lease is no longer renewed"
    return None


def well_since(context: ReconcileContext, node: NodeState, lost_s: float) -> bool:
    """Whether the kubelet of a node lost `lost_s` seconds ago has renewed its Lease since."""
    if control_sign(context, node) or NODE_LEAVING_TAINTS.intersection(node.taints):
        return False
    if node.lease_age_s is None or context.unknown("Lease"):
        return lost_s >= HEALTHY_S
    return node.lease_age_s < lost_s - 1.0  # timestamps are whole seconds


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
    if is_refused(pod):
        return LossReason.INFRASTRUCTURE_ERROR
    if pod_status.terminating(pod) and not _died_before_deletion(pod, endings):
        return LossReason.PREEMPTED
    if not pod_status.ended(pod) and not endings:
        return None
    killed = any(ending.get("exitCode") in KILLED for ending in endings) or not endings
    if killed and node is not None:
        taken = not (NODE_GONE_TAINTS | NODE_LEAVING_TAINTS).isdisjoint(node.taints)
        if taken or not node.exists or not node.ready:
            return LossReason.NODE_LOST
    # The main process of every pod is Ray's own: the training code runs below it, and what goes
    # wrong there is in the driver's progress, never in a pod's exit code.
    return LossReason.HEAD_LOST if pod_status.is_head(pod) else LossReason.WORKER_LOST


def driver_exit_code(job: Object | None) -> int | None:
    """The driver's exit code, as Ray on the head told KubeRay; None: unknown, or it goes on.

    A driver that signal N has ended has 128 + N, as shells and containers count it.
    """
    message = str((((job or {}).get("status")) or {}).get("message") or "")
    found = _EXIT_CODE.search(message)
    code = int(found.group(1)) if found else None
    return 128 - code if code is not None and code < 0 else code


def driver_has_ended(job: Object | None) -> bool:
    """Whether Ray on the head told KubeRay how the driver ended: of success it gives no code."""
    return driver_exit_code(job) is not None or job_status(job or {}) == "SUCCEEDED"


def is_refused(pod: Object) -> bool:
    """Whether the kubelet of its node has not taken it, so that nothing of it ran."""
    return str(pod.get("status", {}).get("reason") or "").startswith(_REFUSED)


def facts(pod: Object) -> FailureFacts:
    """What failures.rules ask for, of a pod that ended."""
    endings = list(pod_status.terminations(pod))
    disruption = pod_status.condition(pod, "DisruptionTarget") or {}
    named = (
        *(ending.get("reason") for ending in endings),
        pod.get("status", {}).get("reason"),
        disruption.get("reason") if disruption.get("status") == "True" else None,
    )
    codes = (ending.get("exitCode") for ending in endings)
    return FailureFacts(
        reasons=[str(name) for name in named if name][:MOST_REASONS],
        exit_codes=[code for code in codes if code][:MOST_REASONS],
    )


def _died_before_deletion(pod: Object, endings: list[Object]) -> bool:
    """Whether KubeRay deletes a pod that had ended by itself."""
    deleted_at = pod_status.deletion_requested_at(pod)
    finished = [parsed(end["finishedAt"]) for end in endings if end.get("finishedAt")]
    return deleted_at is not None and bool(finished) and max(finished) <= deleted_at


def describe(reason: LossReason, *, head: bool = False) -> str:
    """Why a pod, the head or a worker's, ended: for a sentence that begins with the pod."""
    return {
        LossReason.PREEMPTED: "it was deleted or drained",
        LossReason.EVICTED: "it was evicted from its node",
        LossReason.NODE_LOST: "its node was lost",
        LossReason.HEAD_LOST: "the head was lost",
        LossReason.WORKER_LOST: "it died without notice",
        LossReason.INFRASTRUCTURE_ERROR: "its node refused it",
        LossReason.HANG: "a process in it hung",
        LossReason.OUT_OF_MEMORY: out_of_memory.description(head=head),
    }[reason]
