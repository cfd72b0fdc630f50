"""When Ray has ended in a worker pod whose container goes on, and how that pod is replaced.

A raylet ends with its agent (Ray's agent_manager.cc), for example one that the kernel kills for
memory, and `ray start --block` does not always end with it. The pod stays Running, no worker group
can be placed, and KubeRay's liveness probe ends the pod ten minutes later. Two independent signs
are enough to replace it before: the driver's, to which Ray reports the node as dead, and the
kubelet's, whose readiness probe of Ray's agent fails and did not before.
"""

from datetime import timedelta

from . import pod_status
from .context import ReconcileContext
from .findings import Findings
from .model import Delete, Object
from .node_health import control_sign
from .timestamps import parsed


def replace_pods(context: ReconcileContext, attempt: int) -> Findings:
    """Force-delete worker pods without Ray, so that KubeRay replaces them.

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
