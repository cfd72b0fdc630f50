"""The durations by which the operator decides; each can be set in the chart."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """When something counts as lost, in seconds."""

    poll_s: float = 2.0
    """Between polls of a running attempt's progress, and reconciles while a decision is near."""
    lease_stale_s: float = 15.0
    """Age of a node's Lease that is a sign of its loss. Kubelets renew every 10 s, so a live one
    is hardly ever older than 12; alone it is not enough, see `node_loss`."""
    head_silent_s: float = 5.0
    """Failed polls of a head pod that is still Running: the second sign for its node."""
    startup_deadline_s: float = 600.0
    """An attempt whose pods all run but whose driver reports nothing for so long is lost. KubeRay
    gives up on an unreachable dashboard after 300 s, without retry."""
    suspend_deadline_s: float = 120.0
    """How long the runtime may take to checkpoint before a suspended run's pods are freed."""
    final_progress_s: float = 30.0
    """How long the driver's last document is awaited after its RayJob has ended."""
    terminating_late_s: float = 10.0
    """How long a pod may outstay its grace period before that is a sign that its node is gone."""
    kuberay_retry_s: float = 30.0
    """Between reconciles while KubeRay is missing or too old, or the RayJob is refused."""
