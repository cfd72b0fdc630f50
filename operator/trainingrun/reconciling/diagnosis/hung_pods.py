"""Pods that do not start on their node though nothing in them has failed: what each waits in.

None of this ends anything: a pod starts once the cause is corrected.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from ...api.reasons import ConditionReason
from .. import pod_status
from ..context import ReconcileContext
from ..findings import Blocker
from ..model import Object
from ..texts import parsed, short, written

HUNG_S = 300.0
"""How long a pod may take to start before the status reports it, not counting pulls of images: an
init container of the user's own may have to load data."""

WAITS_FOR_HEAD = "wait-gcs-ready"
"""The init container that KubeRay adds to each worker; it ends once Ray in the head answers."""


def of_pods(context: ReconcileContext, attempt: int, pods: Sequence[Object]) -> Blocker | None:
    """What the first of these pods that hangs waits in; checked after all that has a cause."""
    if context.suspends:
        return None
    head = context.head(attempt)
    head_is_ready = head is not None and pod_status.ready(head)
    for pod in pods:
        if pod_status.phase(pod) != "Pending" or pod_status.terminating(pod):
            continue
        # A worker waits rightly for a head without a node, or whose image is pulled.
        if not pod_status.is_head(pod) and not head_is_ready:
            continue
        hang = _hang(pod, context.run.metadata.namespace)
        if hang is None:
            continue
        ready_at = pod_status.ready_since(head) if head is not None else None
        since = max(hang.since, ready_at or hang.since)
        if (context.now - since).total_seconds() >= HUNG_S:
            return Blocker(ConditionReason.POD_NOT_SET_UP, hang.message)
    return None


def started_at(container: Object) -> datetime | None:
    """Since when a container runs, by its status; None: it does not, or that is not known."""
    text = ((container.get("state") or {}).get("running") or {}).get("startedAt")
    return parsed(text) if text else None


class _Hang(NamedTuple):
    """What a pod waits in, and since when."""

    since: datetime
    message: str


def _hang(pod: Object, namespace: str) -> _Hang | None:
    """None: it has no node, or its image is pulled, which may take as long as it likes."""
    name, node = pod_status.name(pod), pod_status.node_name(pod)
    # A pod whose template names its node has no scheduler that says when.
    bound_at = pod_status.scheduled_at(pod) or pod_status.created(pod)
    if node is None or bound_at is None:
        return None
    bound = f"Pod {name} has node {node} since {written(bound_at)}"
    if next(pod_status.container_statuses(pod), None) is None:
        return _Hang(
            bound_at,
            f"{bound}, whose kubelet has reported no container of it; check that kubelet: kubectl "
            f"describe pod {name} -n {namespace}",
        )
    container = _unfinished(pod)
    if container is not None:
        return _in_container(container, pod, namespace, bound_at)
    for reason, message, _ in pod_status.waiting(pod):
        if reason not in pod_status.CREATING:
            said = f"{reason}: {short(message, 300)}" if message else reason
            return _Hang(
                bound_at,
                f"{bound}, and a container of it waits ({said}); see kubectl describe pod "
                f"{name} -n {namespace}",
            )
    return None


def _unfinished(pod: Object) -> Object | None:
    """The init container that the others wait for: it runs, and none after it has begun. One that
    is ready is a sidecar, for which nothing waits.
    """
    begun = [
        one
        for one in pod_status.container_statuses(pod)
        if {"running", "terminated"} & (one.get("state") or {}).keys()
    ]
    if not begun or begun[-1] not in (pod["status"].get("initContainerStatuses") or ()):
        return None
    works = "running" in begun[-1]["state"] and not begun[-1].get("ready")
    return begun[-1] if works else None


def _in_container(container: Object, pod: Object, namespace: str, bound_at: datetime) -> _Hang:
    name, own = pod_status.name(pod), container["name"]
    began_at = started_at(container) or bound_at
    # A sidecar that is restarted again and again hangs since its first start.
    restarted = (container.get("lastState") or {}).get("terminated")
    since = bound_at if restarted else max(bound_at, began_at)
    runs = f"Pod {name} waits for its init container {own}, which runs since {written(began_at)}"
    log = f"kubectl logs {name} -n {namespace} -c {own}"
    if own != WAITS_FOR_HEAD:
        return _Hang(since, f"{runs}; see {log}")
    return _Hang(
        since,
        f"{runs} and finds no Ray in the head; check that workers reach port 6379 of the head "
        f"(NetworkPolicy, DNS): {log}",
    )
