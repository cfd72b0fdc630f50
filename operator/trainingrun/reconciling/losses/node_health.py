"""Whether the control plane shows a node as lost or as ready again."""

from ..context import ReconcileContext
from ..model import NodeState

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
