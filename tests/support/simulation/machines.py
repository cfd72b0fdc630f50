"""Machines and pods of the simulated cluster: what the API server shows, and what is really so."""

from dataclasses import dataclass, field
from typing import Any

from trainingrun.reconciling.model import NodeState

from ..builders import a_pod, at

LEASE_AGE_S = 5.0
"""Age of a Lease that is renewed."""

NOT_READY_S = 40.0
"""Silence of a kubelet after which its node is NotReady."""

TAINT_EVICTION_S = 340.0
"""Silence after which pods there are marked for deletion."""

START_S = 4.0
"""From a node's choice until a pod's containers run."""

READINESS_S = 30.0
"""From the end of Ray until its readiness probe has failed often enough."""

LIVENESS_S = 600.0
"""The same for the liveness probe, after which the container is ended."""

LEAVING_S = 3.0
"""From a pod's deletion until it is gone, where its node lives."""


@dataclass(eq=False)
class Node:
    """One machine."""

    name: str
    hostname: str
    capacity: str = ""
    """Its label of a spot or an on-demand node; empty: none."""
    powered: bool = True
    """The machine runs, and its network works."""
    kubelet: bool = True
    """Its kubelet runs; without it the containers continue unseen."""
    exists: bool = True
    """Its Node object is there."""
    taints: set[str] = field(default_factory=set)
    """What someone put on it."""
    silent_since: float | None = None
    """Since when its kubelet is not reachable."""

    @property
    def labels(self) -> dict[str, str]:
        """What pods select it by."""
        labels = {"kubernetes.io/hostname": self.hostname}
        return {**labels, "trainingrun.dev/capacity": self.capacity} if self.capacity else labels

    @property
    def well(self) -> bool:
        """Whether nothing at all is wrong with it."""
        return self.powered and self.kubelet and self.exists and not self.taints

    @property
    def reachable(self) -> bool:
        """Whether its kubelet talks to the API server."""
        return self.powered and self.kubelet

    def state(self, now: float) -> NodeState:
        """What the control plane shows."""
        silent = 0.0 if self.silent_since is None else now - self.silent_since
        ready = silent < NOT_READY_S
        taints = sorted(self.taints | (set() if ready else {"node.kubernetes.io/unreachable"}))
        return NodeState(
            self.name,
            hostname=self.hostname,
            exists=self.exists,
            ready=ready and self.exists,
            lease_age_s=LEASE_AGE_S + silent if self.exists else None,
            taints=tuple(taints) if self.exists else (),
            labels=self.labels if self.capacity else {},
        )


@dataclass(eq=False)
class Pod:
    """One pod: its object, and the truth about its processes."""

    object: dict[str, Any]
    number: int
    is_head: bool
    cluster: str
    """UID of its RayCluster."""
    node: Node | None = None
    assigned: float = 0.0
    """When its node was chosen."""
    head_uid: str = ""
    """The head that a worker joined."""
    gone_at: float | None = None
    """When the kubelet lets it go."""
    hangs: bool = False
    """The kubelet never lets it go."""
    headless_since: float | None = None
    """Since when a worker's head is gone."""
    lost: bool = False
    """Something happened to it: the loss is in the list of losses."""
    blocked: str | None = None
    """Why its container cannot start."""
    ray_ended_at: float | None = None
    """When Ray ended in its container, which continues."""

    @property
    def uid(self) -> str:
        """Its UID."""
        return str(self.object["metadata"]["uid"])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.object["metadata"]["name"])

    @property
    def phase(self) -> str:
        """As the API server shows it."""
        return str(self.object["status"]["phase"])

    @property
    def terminating(self) -> bool:
        """Whether its deletion was asked for."""
        return "deletionTimestamp" in self.object["metadata"]

    @property
    def container_runs(self) -> bool:
        """Whether its main container runs and can be reached."""
        return self.phase == "Running" and self.node is not None and self.node.powered

    @property
    def alive(self) -> bool:
        """Whether Ray runs in it and can be reached."""
        return self.container_runs and self.ray_ended_at is None

    @property
    def well(self) -> bool:
        """Whether nothing at all is wrong with it or its node."""
        return self.alive and not self.terminating and self.node is not None and self.node.well

    def leave(self, now: float, grace_s: int = 35) -> None:
        """Its deletion is asked for."""
        if self.terminating:
            return
        metadata = self.object["metadata"]
        metadata["deletionTimestamp"] = at(now + grace_s)
        metadata["deletionGracePeriodSeconds"] = grace_s
        self.gone_at = now + min(LEAVING_S, grace_s)

    def run(self, now: float) -> None:
        """Its containers start."""
        status = self.object["status"]
        status["phase"] = "Running"
        _condition(status, {"type": "Ready", "status": "True", "lastTransitionTime": at(now)})
        for container in status.get("initContainerStatuses", ()):
            ending = {"exitCode": 0, "reason": "Completed", "finishedAt": at(now)}
            container.update(state={"terminated": ending}, ready=True)
        self._create_containers()
        for container in status["containerStatuses"]:
            container.update(state={"running": {"startedAt": at(now)}}, ready=True)

    def probe(self, now: float) -> None:
        """Its kubelet finds that Ray has ended."""
        ended = now if self.ray_ended_at is None else self.ray_ended_at
        if now - ended >= LIVENESS_S:
            self.end(now, 137)
        elif now - ended >= READINESS_S and self.ready:
            self._is_not_ready(now)

    @property
    def ready(self) -> bool:
        """As the API server shows it."""
        found = {known["type"]: known["status"] for known in self.object["status"]["conditions"]}
        return found.get("Ready") == "True"

    def _is_not_ready(self, now: float, **container_status: Any) -> None:
        """Its main container has `container_status` besides."""
        status = self.object["status"]
        _condition(status, {"type": "Ready", "status": "False", "lastTransitionTime": at(now)})
        for container in status["containerStatuses"]:
            if container["name"] == self.container:
                container.update(**container_status, ready=False)

    def assign(self, node: Node, now: float) -> None:
        """A node was chosen."""
        self.node, self.assigned = node, now
        self.object["spec"]["nodeName"] = node.name
        status = self.object["status"]
        _condition(
            status, {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(now)}
        )
        self._create_containers()

    def _create_containers(self) -> None:
        """Its kubelet says that they are created, where it has said nothing of them."""
        waiting = {"reason": "ContainerCreating", "message": ""}
        created = {"name": self.container, "state": {"waiting": waiting}, "ready": False}
        self.object["status"].setdefault("containerStatuses", [created])

    def refuse(self, message: str, now: float) -> None:
        """No node takes it."""
        status = self.object["status"]
        since = next(
            (c["lastTransitionTime"] for c in status["conditions"] if c["type"] == "PodScheduled"),
            at(now),
        )
        _condition(
            status,
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": message,
                "lastTransitionTime": since,
            },
        )

    def block(self, reason: str, message: str) -> None:
        """Its container cannot start."""
        self.blocked = message
        self.object["status"]["containerStatuses"] = [
            {
                "name": self.container,
                "state": {"waiting": {"reason": reason, "message": message}},
                "ready": False,
            }
        ]

    def hang(self, now: float, init_container: str) -> None:
        """This init container of it runs and does not end; empty: its kubelet does nothing."""
        status = self.object["status"]
        if not init_container:
            status.pop("containerStatuses", None)
        elif "initContainerStatuses" not in status:
            state = {"running": {"startedAt": at(now)}}
            works = {"name": init_container, "state": state, "ready": False}
            status["initContainerStatuses"] = [works]
            self._create_containers()

    def end(self, now: float, code: int, because: str = "Error", message: str = "") -> None:
        """Its main container ends; it is never started again."""
        status = self.object["status"]
        status["phase"] = "Failed" if code else "Succeeded"
        ending: dict[str, Any] = {"exitCode": code, "reason": because, "finishedAt": at(now)}
        if message:
            ending["message"] = message
        self._is_not_ready(now, state={"terminated": ending})

    def disrupted(self, reason: str) -> None:
        """Kubernetes says why it is taken away."""
        _condition(
            self.object["status"],
            {"type": "DisruptionTarget", "status": "True", "reason": reason},
        )

    @property
    def container(self) -> str:
        """Its main container."""
        return "ray-head" if self.is_head else "ray-worker"


def new_pod(name: str, number: int, role: str, cluster: str, now: float) -> Pod:
    """A pod that waits for a node."""
    found = a_pod(
        name,
        number=number,
        role=role,
        node=None,
        phase="Pending",
        created_at=now,
        uid=f"uid-{name}",
        ray_cluster=cluster,
    )
    found["status"]["conditions"] = []
    return Pod(found, number, role == "head", cluster)


def _condition(status: dict[str, Any], condition: dict[str, Any]) -> None:
    others = [known for known in status["conditions"] if known["type"] != condition["type"]]
    status["conditions"] = [*others, condition]
