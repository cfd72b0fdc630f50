"""What a pod's metadata and status say; a pod is a plain dict as the API server gives it.

Whose an object is, the chain of its controllers says, by UID. Labels alone decide nothing: whoever
copies an object copies its labels (`kubectl debug --copy-to --keep-labels`, a backup).
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ..api.pods_spec import RAY_CONTAINERS
from ..api.quantities import measure
from ..rendering import names
from .model import Object, Ref
from .texts import parsed, written

MOST_CHARACTERS = 200
"""Of a container's termination message."""


CREATING = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons of containers that wait for volumes, the network, init containers or their image."""


def uid(item: Object) -> str:
    """UID of any object."""
    return str(item["metadata"].get("uid", ""))


def name(item: Object) -> str:
    """Name of any object."""
    return str(item["metadata"]["name"])


def created(item: Object) -> datetime | None:
    """When any object was created."""
    text = item["metadata"].get("creationTimestamp")
    return parsed(text) if text else None


def creation_text(item: Object) -> str:
    """When any object was created, as Kubernetes writes it; such times sort as text."""
    return str(item["metadata"].get("creationTimestamp") or "")


def ref(item: Object, api_version: str, kind: str) -> Ref:
    """A reference with the object's UID, so that a successor of the same name is not touched."""
    metadata = item["metadata"]
    return Ref(api_version, kind, metadata["namespace"], metadata["name"], uid(item) or None)


def pod_ref(pod: Object) -> Ref:
    """A reference to this pod, with its UID."""
    return ref(pod, "v1", "Pod")


def is_head(pod: Object) -> bool:
    """Whether it is the head."""
    return bool(pod["metadata"].get("labels", {}).get(names.ROLE_LABEL) == names.HEAD)


def node_name(pod: Object) -> str | None:
    """The node that it was scheduled on."""
    node = pod.get("spec", {}).get("nodeName")
    return str(node) if node else None


def holds_its_node(pod: Object) -> bool:
    """Whether it takes its share of a node: other pods cannot use it."""
    return node_name(pod) is not None and not ended(pod)


def requests(pod: Object) -> tuple[tuple[str, float], ...]:
    """What its containers request of the node, by resource, in base units."""
    totals: dict[str, float] = {}
    for container in pod.get("spec", {}).get("containers") or ():
        requested = (container.get("resources") or {}).get("requests") or {}
        for resource, quantity in requested.items():
            totals[resource] = totals.get(resource, 0.0) + measure(quantity)
    return tuple(sorted(totals.items()))


def phase(pod: Object) -> str:
    """Pending, Running, Succeeded, Failed or Unknown."""
    return str(pod.get("status", {}).get("phase", "Unknown"))


def absent(pod: Object | None) -> bool:
    """Whether there is no pod, or one that has ended or is being deleted."""
    return pod is None or ended(pod) or terminating(pod)


def ended(pod: Object) -> bool:
    """Whether Ray's container is done for good (restartPolicy is Never).

    A pod whose phase says that it ended has no container left; in one whose phase is Running, a
    sidecar may have outlived Ray's container.
    """
    return phase(pod) in ("Succeeded", "Failed") or bool(
        ((ray_container(pod) or {}).get("state") or {}).get("terminated")
    )


def terminating(pod: Object) -> bool:
    """Whether its deletion was requested."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def running(pod: Object) -> bool:
    """Whether Ray's container may run and the pod's deletion is not requested."""
    return phase(pod) == "Running" and not terminating(pod) and not ended(pod)


def ready(pod: Object) -> bool:
    """Whether its condition Ready is True."""
    readiness = condition(pod, "Ready")
    return readiness is not None and readiness.get("status") == "True"


def unready_containers(pod: Object) -> list[str] | None:
    """The user's own containers that keep a pod from being Ready whose Ray is; empty: a readiness
    gate does. None: it is Ready, or Ray is not, or that is not known.
    """
    readiness, ray = condition(pod, "Ready"), ray_container(pod)
    if readiness is None or readiness.get("status") != "False" or not (ray or {}).get("ready"):
        return None
    statuses = container_statuses(pod)
    # Init containers that have ended count as ready; native sidecars are ready when they are.
    return [str(status.get("name")) for status in statuses if not status.get("ready")]


def ready_since(pod: Object) -> datetime | None:
    """Since when it is Ready; None: it is not, or that is not known."""
    return changed_readiness(pod) if ready(pod) else None


def changed_readiness(pod: Object) -> datetime | None:
    """Since when it is Ready, or is not; None: that is not known."""
    changed = (condition(pod, "Ready") or {}).get("lastTransitionTime")
    return parsed(changed) if changed else None


def deletion_requested_at(pod: Object) -> datetime | None:
    """When its deletion was requested; Kubernetes stores that time plus the grace period."""
    text = pod["metadata"].get("deletionTimestamp")
    if not text:
        return None
    grace = pod["metadata"].get("deletionGracePeriodSeconds") or 0
    return parsed(text) - timedelta(seconds=grace)


def ended_at(pod: Object) -> str:
    """When Ray's container ended, or the pod's deletion was requested, as Kubernetes writes times;
    "": it lives, or that is not known.
    """
    if terminating(pod):
        requested = deletion_requested_at(pod)
        return written(requested) if requested else ""
    return str((ray_ending(pod) or {}).get("finishedAt") or "")


def overdue_s(pod: Object, now: datetime) -> float | None:
    """Seconds since it should have been gone; None: it is not terminating or has time left."""
    text = pod["metadata"].get("deletionTimestamp")
    if not text:
        return None
    late = (now - parsed(text)).total_seconds()
    return late if late > 0 else None


def container_statuses(pod: Object) -> Iterator[Object]:
    """Of init containers and containers."""
    status = pod.get("status", {})
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def ray_container(pod: Object) -> Object | None:
    """The status of the container that Ray runs in; the user's sidecars are no part of the run."""
    for status in pod.get("status", {}).get("containerStatuses") or ():
        if status.get("name") in RAY_CONTAINERS:
            return dict(status)
    return None


def joined(pod: Object) -> str:
    """When a worker joined the head that was there then, as Kubernetes writes times; "": not yet.

    Its Ray container starts once a head answers. A pod that was created under a former head and
    still waited when that head was lost joins the next one. The container's time is of its node's
    clock, which may be behind: it started no earlier than the API server made the pod.
    """
    state = (ray_container(pod) or {}).get("state") or {}
    started = (state.get("running") or state.get("terminated") or {}).get("startedAt")
    if phase(pod) == "Pending" and not started:
        return ""
    return max(str(started or ""), creation_text(pod))


def ray_ending(pod: Object) -> Object | None:
    """How Ray's container ended, now or before it was restarted; None: it did not."""
    container = ray_container(pod)
    return _ending(container) if container else None


def all_containers_ended(pod: Object) -> bool:
    """Whether the kubelet says of each of its containers that it ended, native sidecars (init
    containers that are restarted) included.
    """
    if not pod.get("status", {}).get("containerStatuses"):
        return False
    statuses = container_statuses(pod)
    return all((status.get("state") or {}).get("terminated") for status in statuses)


def terminations(pod: Object) -> Iterator[Object]:
    """How Ray's container ended; in a pod that failed before it ran, the init containers that
    failed.
    """
    own = ray_ending(pod)
    if own:
        yield own
    elif phase(pod) == "Failed":
        for status in pod["status"].get("initContainerStatuses") or ():
            ending = _ending(status)
            if ending and ending.get("exitCode") != 0:
                yield ending


def termination_message(pod: Object) -> str:
    """How its first ended container ended, such as `exit code 1: ValueError: …`; "": none did.

    Kubernetes reports the end of a failed container's log, of which this takes the end of the
    last line: a runtime that cannot start a command begins with a long text.
    """
    for ending in terminations(pod):
        if (code := ending.get("exitCode")) is not None:
            lines = str(ending.get("message") or "").strip().splitlines()
            last_line = f": {lines[-1].strip()[-MOST_CHARACTERS:]}" if lines else ""
            return f"exit code {code}{last_line}"
    return ""


def eviction_message(pod: Object) -> str:
    """What its kubelet or the scheduler says of why it was evicted, preempted or refused; "":
    nothing.
    """
    disruption = condition(pod, "DisruptionTarget") or {}
    said = disruption.get("message") if disruption.get("status") == "True" else None
    return str(pod.get("status", {}).get("message") or said or "")


def awaits_set_up(pod: Object) -> bool:
    """Whether its volumes or its network are missing: no image is pulled before they are there.

    False also where its kubelet does not say so (KEP-3085; Kubernetes says it since 1.29).
    """
    set_up = condition(pod, "PodReadyToStartContainers")
    return set_up is not None and set_up.get("status") == "False"


def pulls_since(pod: Object) -> datetime | None:
    """Since when its volumes and network are there and the image of its next container is not;
    None: that is not so, or not known.
    """
    set_up = condition(pod, "PodReadyToStartContainers")
    if set_up is None or set_up.get("status") != "True" or not set_up.get("lastTransitionTime"):
        return None
    for status in container_statuses(pod):
        state = status.get("state") or {}
        if state.get("waiting"):
            creating = state["waiting"].get("reason") in CREATING
            return parsed(set_up["lastTransitionTime"]) if creating else None
        if not state.get("terminated") and not status.get("ready"):
            return None  # an init container runs
    return None


def _ending(container: Object) -> Object | None:
    state: dict[str, Any] = container.get("state") or {}
    last: dict[str, Any] = container.get("lastState") or {}
    return state.get("terminated") or last.get("terminated")


def waiting(pod: Object) -> Iterator[tuple[str, str, str]]:
    """Reason, message and image of each container that cannot start."""
    for status in container_statuses(pod):
        state = (status.get("state") or {}).get("waiting")
        if state:
            reason, message = str(state.get("reason", "")), str(state.get("message", ""))
            yield reason, message, str(status.get("image") or "")


def condition(item: Object, type_: str) -> Object | None:
    """One condition of a pod or RayCluster."""
    for one in item.get("status", {}).get("conditions") or ():
        if one.get("type") == type_:
            return dict(one)
    return None


def unschedulable(pod: Object) -> bool:
    """Whether the scheduler finds no node for it."""
    scheduled = condition(pod, "PodScheduled")
    return bool(
        scheduled
        and scheduled.get("status") == "False"
        and scheduled.get("reason") == "Unschedulable"
    )


def unschedulable_since(pod: Object) -> datetime | None:
    """Since when no node takes it; None: one does, or the scheduler has not said so."""
    scheduled = condition(pod, "PodScheduled")
    if scheduled is None or not unschedulable(pod) or not scheduled.get("lastTransitionTime"):
        return None
    return parsed(scheduled["lastTransitionTime"])


def scheduled_at(pod: Object) -> datetime | None:
    """When a node was found for it."""
    scheduled = condition(pod, "PodScheduled")
    if scheduled and scheduled.get("status") == "True" and scheduled.get("lastTransitionTime"):
        return parsed(scheduled["lastTransitionTime"])
    return None


class NamedHead(NamedTuple):
    """A head pod as KubeRay's status names it."""

    name: str
    address: str | None
    """Its IP address; None: KubeRay does not know it yet."""

    def is_of(self, name: str, address: str | None) -> bool:
        """Whether it is this pod. A later pod may have got the name of one that is gone, but not
        its address.
        """
        return name == self.name and (self.address is None or address in (None, self.address))


def named_head(ray_cluster: Object) -> NamedHead | None:
    """The head pod in a RayCluster's status; None: it names none yet."""
    head = (ray_cluster.get("status") or {}).get("head") or {}
    return NamedHead(head["podName"], head.get("podIP") or None) if head.get("podName") else None


class Controller(NamedTuple):
    """The object that controls another one."""

    uid: str
    name: str


def controller(owned: Object, kind: str) -> Controller | None:
    """The object of that kind that controls it; None: none does."""
    for owner in owned["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == kind:
            return Controller(str(owner.get("uid")), str(owner.get("name")))
    return None


def controller_uid(owned: Object, kind: str) -> str | None:
    """UID of the object of that kind that controls it; None: none does."""
    owner = controller(owned, kind)
    return owner.uid if owner else None


def attempt_of(item: Object) -> int | None:
    """The attempt that an object is labeled with; None: none."""
    number = str((item["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL, ""))
    return int(number) if number.isdecimal() else None
