"""A simulator: nodes, kubelets, a scheduler, KubeRay and the driver of one run, of which none runs.

The API server is a real one, so that a real operator works with it. The time here is that of the
simulation. It passes `speed` times as fast as this machine's, and jumps to the next event whenever
nothing is left to happen before it (`until`): a day of training with 33 losses takes as long as its
33 recoveries do.
"""

import asyncio
import contextlib
import copy
import itertools
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from support.operators import RAY_API, PlaysHead, controlled_by
from trainingrun.cluster.api_client import Connection, NotFound
from trainingrun.cluster.resources import path
from trainingrun.rendering.names import ROLE_LABEL, WORKER
from trainingrun.rendering.scheduling import excluded
from trainingrun_protocol.progress import Progress, RecordKind, RunState

Object = dict[str, Any]

TICK_S = 0.1
"""Between two looks at the API server, of this machine's time."""
RENEW_S = 10.0
"""Between renewals of a node's Lease."""
NOT_READY_S = 40.0
"""Silence of a kubelet after which the control plane shows its node as not Ready."""
TOLERATED_S = NOT_READY_S + 30.0
"""After which pods there are deleted: what they tolerate of such a node."""
GONE_S = 90.0
"""After which a cloud's controller has deleted the Node object of a machine that is gone."""
COLLECTED_S = 40.0
"""After that the garbage collector has deleted the pods of the Node object that is gone."""
LEAVING_S = 3.0
"""From a pod's deletion until a kubelet that runs has ended it."""
HEAD_NODE = "base-1"
SPOT_LABELS = {"trainingrun.dev/capacity": "spot"}
MERGE = "application/merge-patch+json"
LONG = 1_000_000_000
"""Steps, more than a day has."""


@dataclass(frozen=True)
class Stages:
    """How long the parts of a recovery take that the operator has no share in, in seconds."""

    begin: float
    """Of a run that is applied: from when all pods are ready to its first step."""
    pod: float
    """From a node's choice for a pod until the pod is ready and has joined Ray."""
    group: float
    """From when all workers are there again until the first step."""
    notice: float
    """From the death of a node until Ray reports it."""


@dataclass(eq=False)
class Node:
    """A machine."""

    name: str
    died_at: float | None = None
    renewed_at: float = 0.0
    not_ready: bool = False
    evicted: bool = False
    deleted: bool = False
    """Its Node object is."""

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.died_at is None


@dataclass(eq=False)
class Driver:
    """The runtime's driver: it trains while every worker of its group is there."""

    attempt: int
    state: RunState = RunState.STARTING
    group: dict[str, str] = field(default_factory=dict)
    """Node by UID of each worker pod that trains."""
    training: bool = False
    due_at: float | None = None
    """When it does its next first step."""
    records: list[Object] = field(default_factory=list)
    lost_nodes: set[str] = field(default_factory=set)


class SimulatedCluster:
    """The cluster of one run.

    Attributes:
        trained_s: Seconds in which it has trained.
        recoveries: How often it had to begin again.
        gone_s: Seconds after which the Node object of a machine that is gone is deleted.
    """

    def __init__(
        self, connection: Connection, namespace: str, head: PlaysHead, stages: Stages, speed: float
    ) -> None:
        self._connection, self._namespace, self._head = connection, namespace, head
        self._stages, self._speed = stages, speed
        self._began, self._skipped = time.monotonic(), 0.0
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Object] = {}
        """By UID, as they were read last."""
        self._bound_at: dict[str, float] = {}
        self._deleted_at: dict[str, float] = {}
        self._driver: Driver | None = None
        self._numbers = itertools.count(1)
        self._changed = 0
        """How many documents had been fetched when something changed last."""
        self._trained_until = 0.0
        self.trained_s, self.recoveries, self.gone_s = 0.0, 0, GONE_S

    @property
    def now(self) -> float:
        """Seconds since the simulation began."""
        return (time.monotonic() - self._began) * self._speed + self._skipped

    @property
    def training(self) -> bool:
        """Whether it does steps."""
        return self._driver is not None and self._driver.training

    # What happens to it

    async def add_node(self, name: str, spot: bool = True) -> None:
        """A machine joins."""
        labels = {"kubernetes.io/hostname": name, **(SPOT_LABELS if spot else {})}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        made = path("v1", "Node", None, name)
        await self._connection.create(path("v1", "Node"), node)
        # The API server puts a taint on it, which a controller takes off once it is Ready.
        await self._patch(made, {"spec": {"taints": None}})
        await self._patch(f"{made}/status", {"status": {"conditions": [_ready(True)]}})
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _micro_time()}
        lease = {"apiVersion": LEASE_API, "kind": "Lease", "metadata": {"name": name}}
        await self._connection.create(LEASES, {**lease, "spec": spec})
        self._nodes[name] = Node(name, renewed_at=self.now)
        self._note()

    def kill_node(self, name: str) -> bool:
        """A machine is gone without notice; whether a worker was on it."""
        self._account()
        node, driver = self._nodes[name], self._driver
        node.died_at = self.now
        if driver is not None and driver.training and name in driver.group.values():
            driver.training = False
            self.recoveries += 1
        self._note()
        return any(_role(pod) == WORKER for pod in self._pods_on(node))

    async def until(self, when: float) -> None:
        """Return at that time of the simulation; where nothing is left to happen, at once."""
        while (left := when - self.now) > 0:
            if self._settled():
                self._account()
                left = when - self.now
                self._skipped += max(0.0, left)
                self._account()
                return
            await asyncio.sleep(min(TICK_S / 2, left / self._speed))

    @contextlib.asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Lives on while the block runs; an error of the simulation ends the block."""
        async with asyncio.TaskGroup() as tasks:
            life = tasks.create_task(self._live())
            try:
                yield
            finally:
                life.cancel()

    # Time

    def _note(self) -> None:
        self._changed = self._head.polls

    def _account(self) -> None:
        now = self.now
        if self.training:
            self.trained_s += now - self._trained_until
        self._trained_until = now

    def _settled(self) -> bool:
        """Whether nothing happens before a machine comes or goes.

        The operator has fetched two documents since the last change, so that it has seen it.
        """
        driver = self._driver
        if driver is None or self._head.polls < self._changed + 2:
            return False
        if driver.training:
            return True
        workers = [pod for pod in self._pods.values() if _role(pod) == WORKER]
        waiting = [pod for pod in workers if not pod["spec"].get("nodeName")]
        present = [pod for pod in workers if pod not in waiting]
        return (
            bool(waiting)
            and driver.due_at is None
            and driver.state is RunState.RECOVERING
            and not self._free_nodes(waiting[0])
            and all("deletionTimestamp" not in pod["metadata"] for pod in workers)
            and all(_is_ready(pod) and self._on(pod).alive for pod in present)
        )

    async def _live(self) -> None:
        while True:
            await self._tick()
            await asyncio.sleep(TICK_S)

    async def _tick(self) -> None:
        self._account()
        jobs, clusters, pods = await asyncio.gather(
            self._list(RAY_API, "RayJob"),
            self._list(RAY_API, "RayCluster"),
            self._list("v1", "Pod"),
        )
        found = {pod["metadata"]["uid"]: pod for pod in pods}
        if found.keys() != self._pods.keys():
            self._note()
        self._pods = found
        await self._kubelets()
        await self._schedule()
        await self._kuberay(jobs, clusters)
        self._drive(jobs)

    # Machines

    async def _kubelets(self) -> None:
        for node in list(self._nodes.values()):
            if node.died_at is None:
                if self.now - node.renewed_at >= RENEW_S:
                    node.renewed_at = self.now
                    await self._patch(
                        f"{LEASES}/{node.name}", {"spec": {"renewTime": _micro_time()}}
                    )
                continue
            await self._bury(node, self.now - node.died_at)
        for pod in self._pods.values():
            if pod["spec"].get("nodeName") and self._on(pod).alive:
                await self._run(pod)

    async def _bury(self, node: Node, silent_s: float) -> None:
        """What the control plane does about a machine that is gone, one thing after the other."""
        where = path("v1", "Node", None, node.name)
        if silent_s >= NOT_READY_S and not node.not_ready:
            node.not_ready = True
            await self._patch(f"{where}/status", {"status": {"conditions": [_ready(False)]}})
        elif silent_s >= TOLERATED_S and not node.evicted:
            node.evicted = True
            for pod in self._pods_on(node):
                await self._delete(self._path_of(pod))
        elif silent_s >= self.gone_s and not node.deleted:
            node.deleted = True
            await self._delete(where)
            await self._delete(f"{LEASES}/{node.name}")
        elif silent_s >= self.gone_s and not self._pods_on(node):
            del self._nodes[node.name]
        elif silent_s >= self.gone_s + COLLECTED_S:
            for pod in self._pods_on(node):
                await self._delete(self._path_of(pod), force=True)

    async def _run(self, pod: Object) -> None:
        """What the kubelet of a machine that runs does with a pod."""
        uid = pod["metadata"]["uid"]
        if "deletionTimestamp" in pod["metadata"]:
            if self.now - self._deleted_at.setdefault(uid, self.now) >= LEAVING_S:
                await self._delete(self._path_of(pod), force=True)
        elif not _is_ready(pod) and self.now - self._bound_at[uid] >= self._stages.pod:
            status = copy.deepcopy(pod["status"])
            status["conditions"] = [*status.get("conditions", []), _ready(True)]
            container = {
                "name": pod["spec"]["containers"][0]["name"],
                "image": "none",
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": _seconds()}},
            }
            status |= {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": [container]}
            await self._patch(f"{self._path_of(pod)}/status", {"status": status})
            self._note()

    async def _schedule(self) -> None:
        for pod in self._pods.values():
            if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
                continue
            free = self._free_nodes(pod)
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            if free:
                target = {"apiVersion": "v1", "kind": "Node", "name": free[0]}
                binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
                with contextlib.suppress(NotFound):
                    await self._connection.request(
                        "POST", f"{self._path_of(pod)}/binding", {**binding, "target": target}
                    )
                pod["spec"]["nodeName"] = free[0]
                self._bound_at[uid] = self.now
            elif not pod["status"].get("conditions"):
                condition = {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0 nodes are available",
                    "lastTransitionTime": _seconds(),
                }
                await self._patch(
                    f"{self._path_of(pod)}/status", {"status": {"conditions": [condition]}}
                )

    def _free_nodes(self, pod: Object) -> list[str]:
        """Names of the nodes that the pod may go to: one worker on each. A dead node counts for as
        long as the control plane shows it as Ready.
        """
        if _role(pod) != WORKER:
            return [HEAD_NODE]
        taken = {one["spec"].get("nodeName") for one in self._pods.values()}
        away = excluded(pod["spec"].get("affinity")) | {HEAD_NODE}
        return [
            node.name
            for node in self._nodes.values()
            if not node.not_ready and node.name not in taken | away
        ]

    def _on(self, pod: Object) -> Node:
        return self._nodes[pod["spec"]["nodeName"]]

    def _pods_on(self, node: Node) -> list[Object]:
        return [pod for pod in self._pods.values() if pod["spec"].get("nodeName") == node.name]

    # KubeRay

    async def _kuberay(self, jobs: Iterable[Object], clusters: Iterable[Object]) -> None:
        by_job = {
            owner["uid"]: cluster
            for cluster in clusters
            for owner in cluster["metadata"]["ownerReferences"]
        }
        for job in jobs:
            cluster = by_job.pop(job["metadata"]["uid"], None)
            if cluster is None:
                await self._create_cluster(job)
            else:
                await self._keep_pods(cluster)
                await self._submit(job, cluster)
        for orphan in by_job.values():  # the garbage collector's: its RayJob is gone
            await self._delete(self._path_of(orphan))
            for pod in self._pods_of(orphan):
                await self._delete(self._path_of(pod), force=True)
            self._driver = None

    async def _create_cluster(self, job: Object) -> None:
        metadata = {
            "name": f"{job['metadata']['name']}-abcde",
            "labels": job["metadata"]["labels"],
            "ownerReferences": [controlled_by(job)],
        }
        cluster = {"apiVersion": RAY_API, "kind": "RayCluster", "metadata": metadata}
        spec = {"spec": job["spec"]["rayClusterSpec"]}
        await self._connection.create(
            path(RAY_API, "RayCluster", self._namespace), {**cluster, **spec}
        )

    async def _keep_pods(self, cluster: Object) -> None:
        """Terminating pods count as replicas, as KubeRay counts them."""
        own = self._pods_of(cluster)
        spec = cluster["spec"]
        if not any(_role(pod) != WORKER for pod in own):
            await self._create_pod(cluster, "head", spec["headGroupSpec"]["template"])
        (group,) = spec["workerGroupSpecs"]
        workers = sum(_role(pod) == WORKER for pod in own)
        for _ in range(group["replicas"] - workers):
            await self._create_pod(cluster, WORKER, group["template"])
        heads = [pod for pod in self._pods_of(cluster) if _role(pod) != WORKER]
        name = heads[0]["metadata"]["name"] if heads else ""
        if ((cluster.get("status") or {}).get("head") or {}).get("podName", "") != name:
            status = {"status": {"head": {"podName": name}}}
            await self._patch(f"{self._path_of(cluster)}/status", status)

    async def _submit(self, job: Object, cluster: Object) -> None:
        """The driver is submitted once every pod is there."""
        if (job.get("status") or {}).get("jobDeploymentStatus"):
            return
        if all(_is_ready(pod) for pod in self._pods_of(cluster)):
            status = {"jobStatus": "RUNNING", "jobDeploymentStatus": "Running"}
            await self._patch(f"{self._path_of(job)}/status", {"status": status})

    async def _create_pod(self, cluster: Object, role: str, template: Object) -> None:
        metadata = copy.deepcopy(template["metadata"])
        metadata["name"] = f"{cluster['metadata']['name']}-{role}-{next(self._numbers):05d}"
        metadata["labels"]["ray.io/node-type"] = role
        metadata["ownerReferences"] = [controlled_by(cluster)]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        made = await self._connection.create(path("v1", "Pod", self._namespace), pod)
        self._pods[made["metadata"]["uid"]] = made
        self._note()

    def _pods_of(self, cluster: Object) -> list[Object]:
        uid = cluster["metadata"]["uid"]
        return [
            pod
            for pod in self._pods.values()
            if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", ()))
        ]

    # The driver

    def _drive(self, jobs: Iterable[Object]) -> None:
        job = next((job for job in jobs if job.get("status")), None)
        if job is None:
            self._head.document = None
            return
        if self._driver is None:
            self._driver = Driver(int(job["metadata"]["labels"]["trainingrun.dev/attempt"]))
        self._look(self._driver, job)
        self._head.document = self._document(self._driver)

    def _look(self, driver: Driver, job: Object) -> None:
        here = {
            uid: pod["spec"]["nodeName"]
            for uid, pod in self._pods.items()
            if _role(pod) == WORKER and _is_ready(pod) and self._on(pod).alive
        }
        if driver.state is RunState.TRAINING:
            gone = {uid: node for uid, node in driver.group.items() if uid not in here}
            noticed = {uid: node for uid, node in gone.items() if self._is_noticed(uid, node)}
            if gone and driver.training:  # a pod was deleted on a machine that runs
                driver.training = False
                self.recoveries += 1
                self._note()
            if noticed:
                for node in noticed.values():
                    driver.lost_nodes.add(node)
                    self._record(driver, RecordKind.WORKER_LOST, node)
                driver.state, driver.due_at = RunState.RECOVERING, None
                self._note()
            return
        (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        if len(here) < group["replicas"]:
            driver.due_at = None
        elif driver.due_at is None:
            begins = driver.state is RunState.STARTING
            driver.due_at = self.now + (self._stages.begin if begins else self._stages.group)
        elif self.now >= driver.due_at:
            self._account()
            driver.state, driver.group, driver.training = RunState.TRAINING, here, True
            driver.due_at = None
            driver.lost_nodes.clear()
            self._record(driver, RecordKind.RESTORED, None)
            self._note()

    def _is_noticed(self, uid: str, node: str) -> bool:
        found = self._nodes.get(node)
        if found is None or found.died_at is None or uid not in self._pods:
            return True
        return self.now - found.died_at >= self._stages.notice

    def _record(self, driver: Driver, kind: RecordKind, node: str | None) -> None:
        driver.records.append(
            {
                "number": len(driver.records) + 1,
                "kind": kind,
                "time": time.time(),
                "message": kind.value,
                "step": int(self.trained_s),
                "node": node,
            }
        )

    def _document(self, driver: Driver) -> Object:
        step = int(self.trained_s)
        document = Progress.model_validate(
            {
                "attempt": driver.attempt,
                "fencing_token": driver.attempt,
                "state": driver.state,
                "time": time.time(),
                "resumed_from_step": 0,
                "step": step,
                "step_time": time.time() if driver.training else None,
                "total_steps": LONG,
                "has_session": True,
                "world_size": len(driver.group),
                "records": driver.records[-100:],
                "seconds": {"productive": float(step)},
                "lost_nodes": sorted(driver.lost_nodes),
            }
        )
        return document.model_dump(mode="json", by_alias=True)

    # The API server

    async def _list(self, api_version: str, kind: str) -> list[Object]:
        found = await self._connection.request("GET", path(api_version, kind, self._namespace))
        return [{"apiVersion": api_version, "kind": kind, **item} for item in found["items"]]

    async def _patch(self, where: str, change: Object) -> None:
        with contextlib.suppress(NotFound):
            await self._connection.request("PATCH", where, change, content_type=MERGE)

    async def _delete(self, where: str, force: bool = False) -> None:
        options = {"gracePeriodSeconds": 0} if force else None
        with contextlib.suppress(NotFound):
            await self._connection.request("DELETE", where, options)

    def _path_of(self, found: Object) -> str:
        name = found["metadata"]["name"]
        return path(found["apiVersion"], found["kind"], self._namespace, name)


LEASE_API = "coordination.k8s.io/v1"
LEASES = path(LEASE_API, "Lease", "kube-node-lease")


def _role(pod: Object) -> str:
    return str(pod["metadata"]["labels"][ROLE_LABEL])


def _is_ready(pod: Object) -> bool:
    return bool(pod["status"].get("phase") == "Running")


def _ready(holds: bool) -> Object:
    """Condition Ready, since now."""
    status = "True" if holds else "Unknown"
    return {"type": "Ready", "status": status, "lastTransitionTime": _seconds()}


def _seconds() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
