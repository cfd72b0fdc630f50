"""The simulated cluster: nodes, scheduler, kubelets, garbage collector, KubeRay and the driver.

Pure and deterministic: it has a clock of its own and no source of chance. It keeps the list of what
was truly lost, against which the operator's counts are held.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainingrun.reconciling.diagnosis.hung_pods import WAITS_FOR_HEAD
from trainingrun.reconciling.pod_status import controller_uid

from ..builders import at, controlled_by
from . import kuberay
from .driver import Bucket, Driver
from .machines import START_S, TAINT_EVICTION_S, Node, Pod

ORPHAN_S = 60.0
"""Until pods of a node whose object is gone are collected."""

HEADLESS_S = 60.0
"""How long a worker outlives its head."""

LONGEST_TICK_S = 3600.0

TOGETHER_S = 60.0
"""What is lost within so many seconds may count as one loss."""


class Loss(NamedTuple):
    """Something that was truly lost."""

    kind: str
    """preempted, node, head, worker, oom, process, queue, application or attempt."""
    time: float
    attempt: int
    pods: int
    """How many pods it took, where they are what an operator can see of it."""
    alone: bool = False
    """It interrupted a healthy training, and nothing was lost shortly before that could explain it.
    """


@dataclass(eq=False)
class Cluster:
    """One RayCluster."""

    object: dict[str, Any]
    number: int
    job_uid: str
    orphaned: bool = False
    unreachable_since: float | None = None

    @property
    def uid(self) -> str:
        """Its UID."""
        return str(self.object["metadata"]["uid"])


@dataclass(eq=False)
class World:
    """Everything but the operator."""

    count: int = 2
    """Worker pods."""
    per_pod: int = 1
    """Workers in each of them."""
    total_steps: int = 400
    minimum: int | None = None
    """Worker pods with which training goes on; None: with all."""
    standby: int = 0
    """Further worker pods, which wait."""
    spot: bool = False
    """The workers' nodes are spot nodes, and there are as many on-demand ones."""
    now: float = 0.0
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    clusters: list[Cluster] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    bucket: Bucket = field(default_factory=Bucket)
    driver: Driver | None = None
    losses: list[Loss] = field(default_factory=list)
    later_causes: Counter[str] = field(default_factory=Counter)
    """By kind, what happened to pods that were lost already: it may be seen as their cause."""
    created: list[int] = field(default_factory=list)
    ended: int = 0
    """The last attempt of which the operator has written that it has ended."""
    refused: set[int] = field(default_factory=set)
    """Attempts whose RayJobs KubeRay has refused."""
    manifests: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Of each attempt's RayJob, as it was created."""
    created_late: int = 0
    foreign: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By kind, objects with the run's labels that others made; nothing happens to them."""
    created_pods: int = 0
    created_clusters: int = 0
    run_deleted: bool = False

    kuberay_away: bool = False
    kuberay_back_at: float = 0.0
    """When it was last found to be there again."""
    finalizer_stays: bool = False
    invalid_jobs: bool = False
    pod_quota: bool = False
    polls_fail: bool = False
    anonymous_records: bool = False
    unable: str | None = None
    """Why new containers cannot start."""
    hangs_in: str | None = None
    """The init container in which pods that start hang; empty: their kubelet does nothing."""
    storage_since: float | None = None

    def __post_init__(self) -> None:
        nodes = range(1, self.count + self.standby + 2)
        names = ["base-1", *(f"spot-{number}" for number in nodes)]
        for name in names:
            # On some clouds a node's name is not its hostname.
            hostname = f"ip-{name}" if name.endswith("2") else name
            spot = self.spot and name.startswith("spot")
            self.nodes[name] = Node(name, hostname, capacity="spot" if spot else "")
        for number in nodes if self.spot else ():
            name = f"demand-{number}"
            self.nodes[name] = Node(name, name, capacity="on-demand")

    # What the operator and users do

    def add_job(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """A RayJob is created."""
        number = int(manifest["metadata"]["labels"]["trainingrun.dev/attempt"])
        assert not self.jobs, f"attempt {number} begins beside RayJob {list(self.jobs)}"
        assert not self.clusters, f"attempt {number} begins beside a RayCluster"
        assert not self.pods, f"attempt {number} begins beside pods of another one"
        assert number not in self.created, f"number {number} is used twice"
        self.created.append(number)
        job = _ray_job(manifest, f"job-{number}", self.now)
        self.jobs[number] = job
        self.manifests[number] = manifest
        return job

    def add_late_job(self, number: int) -> None:
        """The request by which a former leader created this attempt arrives only now."""
        self.created_late += 1
        self.jobs[number] = _ray_job(
            self.manifests[number], f"job-{number}-late-{self.created_late}", self.now
        )

    def delete_job(self, job: dict[str, Any]) -> None:
        """Its deletion is asked for."""
        job["metadata"].setdefault("deletionTimestamp", at(self.now))

    def remove_job(self, number: int) -> None:
        """It is gone, and what it owned goes."""
        job = self.jobs.pop(number)
        cluster = self.cluster_of(job)
        if cluster is not None and not cluster.orphaned:
            self.remove_cluster(cluster)

    def remove_cluster(self, cluster: Cluster) -> list[Pod]:
        """It is gone, and its pods leave."""
        self.clusters.remove(cluster)
        pods = [pod for pod in self.pods if pod.cluster == cluster.uid]
        for pod in pods:
            pod.leave(self.now)
        return pods

    def add_cluster(self, number: int, job: dict[str, Any]) -> Cluster:
        """KubeRay makes the RayCluster of a RayJob."""
        self.created_clusters += 1
        found = kuberay.ray_cluster_object(number, self.created_clusters)
        found["metadata"]["creationTimestamp"] = at(self.now)
        found["spec"] = copy.deepcopy(job["spec"]["rayClusterSpec"])
        owner = job["metadata"]
        found["metadata"]["ownerReferences"] = controlled_by("RayJob", owner["name"], owner["uid"])
        cluster = Cluster(found, number, job["metadata"]["uid"])
        self.clusters.append(cluster)
        return cluster

    def remove_pod(self, pod: Pod) -> None:
        """It is gone from the API server."""
        if pod in self.pods:
            self.pods.remove(pod)

    # Questions

    def cluster_of(self, job: dict[str, Any]) -> Cluster | None:
        """The RayCluster of a RayJob."""
        uid = job["metadata"]["uid"]
        return next((found for found in self.clusters if found.job_uid == uid), None)

    def live_head(self, cluster: Cluster) -> Pod | None:
        """The head pod that can be reached."""
        return next(
            (p for p in self.pods if p.cluster == cluster.uid and p.is_head and p.alive), None
        )

    @property
    def empty(self) -> bool:
        """Whether nothing of the run is left."""
        return not (self.jobs or self.clusters or self.pods)

    def left(self) -> str:
        """What of the run is left."""
        return (
            f"left: RayJobs {list(self.jobs)}, RayClusters {[c.uid for c in self.clusters]}, "
            f"pods {[pod.name for pod in self.pods]}"
        )

    def number(self) -> int:
        """The attempt that is going on."""
        return max(self.jobs, default=0)

    def states_of_jobs(self) -> dict[int, str]:
        """What KubeRay says of each RayJob, by the attempt's number."""
        return {n: job["status"]["jobDeploymentStatus"] for n, job in self.jobs.items()}

    def trains_well(self) -> bool:
        """Whether a healthy attempt trains: nothing may end it but its user or its budgets."""
        driver = self.driver
        job = self.jobs.get(driver.attempt) if driver else None
        if driver is None or job is None or not driver.trains:
            return False
        if "deletionTimestamp" in job["metadata"] or job["spec"]["suspend"]:
            return False
        if job["status"]["jobDeploymentStatus"] != "Running":
            return False
        return driver.head.well and all(pod.well for pod in driver.group)

    def lose(self, kind: str, *pods: Pod, attempt: int | None = None) -> None:
        """Note a loss; pods that were lost already are not lost again.

        Forged pods go: beside a place that is free one can pass for the next pod of the run.
        """
        found = self.foreign.get("Pod", ())
        self.foreign["Pod"] = [pod for pod in found if not is_forged(pod)]
        fresh = [pod for pod in pods if not pod.lost]
        if pods and not fresh:
            self.later_causes[kind] += 1
            return
        alone = self._interrupts(kind, fresh) and (
            not self.losses or self.now - self.losses[-1].time > TOGETHER_S
        )
        for pod in fresh:
            pod.lost = True
        number = attempt or (fresh[0].number if fresh else self.number())
        self.losses.append(Loss(kind, self.now, number, len(fresh), alone))

    def _interrupts(self, kind: str, pods: list[Pod]) -> bool:
        """Whether such a loss, of these pods or of a process, interrupts a healthy training."""
        driver = self.driver
        if driver is None or driver.attempt <= self.ended or not self.trains_well():
            return False
        if not pods:
            return kind != "node"  # one without pods, or only its kubelet
        return any(pod is driver.head or pod in driver.group for pod in pods)

    def stop_kuberay(self, away: bool) -> None:
        """KubeRay's operator goes, or is there."""
        if away and not self.kuberay_away and self.driver is None:
            self.lose("attempt")  # it is given up, if its pods run and nobody submits a driver
        self.kuberay_back_at = self.kuberay_back_at if away else self.now
        self.kuberay_away = away

    # Time

    def pass_time(self, seconds: float) -> None:
        """The cluster continues for so long, in steps that grow."""
        step, left = 1.0, seconds
        while left > 0:
            step = min(step * 1.5, LONGEST_TICK_S, left)
            left -= step
            self._tick(step)

    def _tick(self, passed: float) -> None:
        self.now += passed
        self._nodes()
        self._collect()
        if not self.kuberay_away:
            kuberay.reconcile(self)
        self._kubelets()
        self._schedule()
        self._driver(passed)

    def _nodes(self) -> None:
        for node in self.nodes.values():
            if node.reachable:
                node.silent_since = None
            elif node.silent_since is None:
                node.silent_since = self.now
            elif self.now - node.silent_since >= TAINT_EVICTION_S:
                evicted = [pod for pod in self._on(node) if not pod.terminating]
                if evicted:
                    self.lose("node", *evicted)
                for pod in evicted:
                    pod.disrupted("DeletionByTaintManager")
                    pod.leave(self.now)
            if not node.exists:
                for pod in self._on(node):
                    if self.now - (node.silent_since or self.now) >= ORPHAN_S:
                        self.remove_pod(pod)

    def _on(self, node: Node) -> list[Pod]:
        return [pod for pod in self.pods if pod.node is node]

    def _collect(self) -> None:
        clusters = {cluster.uid for cluster in self.clusters}
        for pod in self.pods:
            if pod.cluster not in clusters:
                pod.leave(self.now)
        self.foreign["Pod"] = [
            pod
            for pod in self.foreign.get("Pod", ())
            if not is_forged(pod) or controller_uid(pod, "RayCluster") in clusters
        ]

    def _kubelets(self) -> None:
        heads = {pod.cluster: pod for pod in self.pods if pod.is_head and pod.alive}
        for pod in list(self.pods):
            if pod.node is None:
                if pod.terminating:
                    self.remove_pod(pod)
                continue
            if not pod.node.reachable:
                continue
            if pod.terminating:
                if not pod.hangs and pod.gone_at is not None and self.now >= pod.gone_at:
                    self.remove_pod(pod)
            elif pod.phase == "Pending":
                self._start(pod, heads.get(pod.cluster))
            elif pod.phase == "Running" and pod.ray_ended_at is not None:
                pod.probe(self.now)
            elif pod.phase == "Running" and not pod.is_head:
                self._mourn(pod, heads.get(pod.cluster))

    def _start(self, pod: Pod, head: Pod | None) -> None:
        if self.unable:
            pod.block("ImagePullBackOff", self.unable)
            return
        if self.hangs_in is not None and not (pod.is_head and self.hangs_in == WAITS_FOR_HEAD):
            pod.hang(self.now, self.hangs_in)
            return
        if self.now - pod.assigned < START_S or not (pod.is_head or head):
            return
        pod.head_uid = head.uid if head else ""
        pod.run(self.now)

    def _mourn(self, worker: Pod, head: Pod | None) -> None:
        """A worker whose head is another one waits for a while, and ends."""
        if head is not None and head.uid == worker.head_uid:
            worker.headless_since = None
        elif worker.headless_since is None:
            worker.headless_since = self.now
        elif self.now - worker.headless_since >= HEADLESS_S:
            worker.lost = True  # it died of its head's loss
            worker.end(self.now, 1)

    def _schedule(self) -> None:
        for pod in self.pods:
            if pod.node is not None or pod.terminating:
                continue
            affinity = pod.object["spec"].get("affinity") or {}
            free = [
                node
                for node in self.nodes.values()
                if node.name.startswith("base") == pod.is_head
                and _fits(affinity, node)
                and node.exists
                and node.state(self.now).ready
                and not node.taints
                and (pod.is_head or not any(other.node is node for other in self.pods))
            ]
            if free:
                pod.assign(free[0], self.now)
            else:
                pod.refuse(
                    "0/4 nodes are available: 4 node(s) didn't match node affinity.", self.now
                )

    def _driver(self, passed: float) -> None:
        driver = self.driver
        if driver is None:
            return
        if driver.head not in self.pods or not driver.head.alive:
            self.driver = None
            return
        if driver.over:
            return
        workers = [p for p in self.pods if p.cluster == driver.head.cluster and not p.is_head]
        driver.go_on(self.now, passed, workers)


def is_forged(pod: dict[str, Any]) -> bool:
    """Whether somebody has made it that names a RayCluster of the run as its controller."""
    return str(pod["metadata"]["name"]).startswith("forged-")


def _ray_job(manifest: dict[str, Any], uid: str, now: float) -> dict[str, Any]:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            **manifest["metadata"],
            "uid": uid,
            "creationTimestamp": at(now),
            "finalizers": ["ray.io/rayjob-finalizer"],
        },
        "spec": {"suspend": False, "rayClusterSpec": manifest["spec"]["rayClusterSpec"]},
        "status": {"jobStatus": "", "jobDeploymentStatus": "", "reason": "", "message": ""},
    }


def _fits(affinity: dict[str, Any], node: Node) -> bool:
    """Whether a pod with this affinity may go to the node, as the scheduler decides it."""
    required = (affinity.get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not required:
        return True
    for term in required["nodeSelectorTerms"]:
        found = [
            (node.labels.get(each["key"]) in each["values"]) == (each["operator"] == "In")
            for each in term.get("matchExpressions") or ()
        ]
        if found and all(found):
            return True
    return False
