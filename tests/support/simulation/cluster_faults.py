"""What can happen to pods, nodes, RayJobs and KubeRay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainingrun.reconciling.diagnosis.hung_pods import WAITS_FOR_HEAD
from trainingrun_protocol.progress import RecordKind

from ..builders import a_pod, a_ray_cluster, a_ray_job
from . import kuberay
from .fault_groups import fault
from .machines import Node, Pod
from .world import is_forged

if TYPE_CHECKING:
    from .story import Story


def _pod(story: Story, choice: int) -> Pod | None:
    """One that the API server lists as running; its machine may be dead."""
    return _chosen([pod for pod in _pods(story) if pod.phase == "Running"], choice)


def _live_pods(story: Story) -> list[Pod]:
    """Those whose containers run: on a dead machine none ends, and no kubelet says so."""
    return [pod for pod in _pods(story) if pod.container_runs]


def _live_pod(story: Story, choice: int) -> Pod | None:
    return _chosen(_live_pods(story), choice)


def _pods(story: Story) -> list[Pod]:
    return [pod for pod in story.world.pods if not pod.terminating]


def _chosen(pods: list[Pod], choice: int) -> Pod | None:
    return pods[choice % len(pods)] if pods else None


def _node(story: Story, choice: int) -> Node:
    nodes = list(story.world.nodes.values())
    return nodes[choice % len(nodes)]


def _kind(pod: Pod, kind: str) -> str:
    return "head" if pod.is_head else kind


# Pods


@fault("pods")
def deletes_a_pod(story: Story, choice: int) -> None:
    """With notice."""
    if pod := _pod(story, choice):
        story.world.lose(_kind(pod, "preempted"), pod)
        pod.leave(story.world.now)


@fault("pods")
def deletes_a_pod_by_force(story: Story, choice: int) -> None:
    if pod := _pod(story, choice):
        story.world.lose(_kind(pod, "worker"), pod)
        story.world.remove_pod(pod)


@fault("pods")
def evicts_a_pod(story: Story, choice: int) -> None:
    if pod := _live_pod(story, choice):
        story.world.lose(_kind(pod, "evicted"), pod)
        pod.object["status"]["reason"] = "Evicted"
        pod.disrupted("TerminationByKubelet")
        pod.end(story.world.now, 137)


@fault("pods")
def drains_a_pod(story: Story, choice: int) -> None:
    if pod := _pod(story, choice):
        story.world.lose(_kind(pod, "preempted"), pod)
        pod.disrupted("EvictionByEvictionAPI")
        pod.leave(story.world.now)


@fault("pods")
def crashes_a_container(story: Story, choice: int) -> None:
    if pod := _live_pod(story, choice):
        story.world.lose(_kind(pod, "worker"), pod)
        pod.end(story.world.now, (1, 137, 143, 0)[choice % 4], message="Ray: it broke")


@fault("pods")
def kills_a_process(story: Story, choice: int) -> None:
    """The training process of a worker; its pod lives on."""
    driver = story.world.driver
    if driver and driver.trains:
        story.world.lose("process")
        driver.record(story.world.now, RecordKind.WORKER_LOST, None)
        driver.regroup()


@fault("pods")
def ray_ends(story: Story, choice: int) -> None:
    """In a worker pod, with its agent; the container continues."""
    if pod := _chosen([pod for pod in _live_pods(story) if not pod.is_head and pod.alive], choice):
        story.world.lose("worker", pod)
        pod.ray_ended_at = story.world.now


@fault("memory")
def runs_out_of_memory(story: Story, choice: int) -> None:
    """Workers that do the same need the same: some or all go over the limit in one failure."""
    workers = [pod for pod in _live_pods(story) if not pod.is_head]
    hit = workers[: 1 + choice % max(len(workers), 1)]
    if hit:
        story.world.lose("oom", *hit)
    for pod in hit:
        pod.end(story.world.now, 137, "OOMKilled")


@fault("memory")
def kernel_kills_a_process(story: Story, choice: int) -> None:
    """The training process of a worker that needs too much; its pod lives on."""
    driver = story.world.driver
    if driver and driver.trains and driver.group and driver.killed is None:
        pod = driver.group[choice % len(driver.group)]
        story.world.lose("oom")
        driver.record(story.world.now, RecordKind.WORKER_LOST, pod)
        driver.killed = driver.records[-1], pod
        driver.regroup()


@fault("memory")
def head_runs_out_of_memory(story: Story, choice: int) -> None:
    for pod in _live_pods(story):
        if pod.is_head:
            story.world.lose("oom", pod)
            pod.end(story.world.now, 137, "OOMKilled")


@fault("sidecars")
def sidecar_ends(story: Story, choice: int) -> None:
    """Of itself, out of memory, or restarted after an error: none of it is the training's."""
    if pod := _live_pod(story, choice):
        ending = {
            "exitCode": (0, 1, 137)[choice % 3],
            "reason": ("Completed", "Error", "OOMKilled")[choice % 3],
            "finishedAt": story.stamp(),
        }
        statuses = pod.object["status"]["containerStatuses"]
        own = [found for found in statuses if found["name"] == pod.container]
        state = (
            {"state": {"terminated": ending}, "ready": False}
            if choice % 2
            else {"state": {"running": {}}, "lastState": {"terminated": ending}, "ready": True}
        )
        side = {"name": "sidecar", **state}
        both = [side, *own] if choice % 5 else [*own, side]
        pod.object["status"]["containerStatuses"] = both


@fault("stuck")
def pod_hangs(story: Story, choice: int) -> None:
    """It is deleted, and its kubelet never lets it go, though its node is well."""
    if pod := _pod(story, choice):
        story.world.lose(_kind(pod, "preempted"), pod)
        pod.hangs = True
        pod.leave(story.world.now)


@fault("stuck")
def pods_hang_as_they_start(story: Story, choice: int) -> None:
    """No worker reaches the head, an init container of the user's own waits for what does not come,
    or kubelets do nothing: for hours, in which nobody comes and a pod has to be replaced; or from
    now on.
    """
    story.world.hangs_in = (WAITS_FOR_HEAD, "load-data", "", None)[choice % 4]
    if choice // 4 % 2 == 0:
        deletes_a_pod(story, choice // 8)
        story.wait(7200)


@fault("startup")
def images_are_gone(story: Story, choice: int) -> None:
    story.world.unable = "manifest unknown" if choice % 2 else None


@fault("startup")
def pod_quota_is_full(story: Story, choice: int) -> None:
    story.world.pod_quota = bool(choice % 2)


# Nodes


@fault("nodes")
def node_dies(story: Story, choice: int) -> None:
    node = _node(story, choice)
    if node.powered:
        story.world.lose("node", *(p for p in story.world.pods if p.node is node))
        node.powered = False


@fault("nodes")
def node_is_removed(story: Story, choice: int) -> None:
    """Its machine is gone, and its Node object too."""
    node = _node(story, choice)
    if node.powered or node.exists:
        story.world.lose("node", *(p for p in story.world.pods if p.node is node))
        node.powered, node.exists = False, False


@fault("nodes")
def node_reboots(story: Story, choice: int) -> None:
    """It comes back at once; what was on it has ended."""
    node = _node(story, choice)
    pods = [pod for pod in story.world.pods if pod.node is node]
    if node.powered:
        story.world.lose("node", *pods)
    for pod in pods:
        if pod.phase == "Running":
            pod.end(story.world.now, 137)
    node.powered, node.kubelet, node.exists = True, True, True
    node.silent_since = None
    node.taints.clear()


@fault("nodes")
def node_is_taken_away(story: Story, choice: int) -> None:
    """The cloud takes the machine back, with notice."""
    node = _node(story, choice)
    pods = [pod for pod in story.world.pods if pod.node is node]
    if pods and not node.taints:
        story.world.lose("preempted", *pods)
        node.taints.add("ToBeDeletedByClusterAutoscaler")
        for pod in pods:
            pod.disrupted("DeletionByTaintManager" if choice % 3 == 0 else "PreemptionByScheduler")
            pod.leave(story.world.now)


@fault("nodes")
def kubelet_stops(story: Story, choice: int) -> None:
    """One sign, and one alone: what runs there continues."""
    node = _node(story, choice)
    if node.reachable and any(pod.node is node for pod in story.world.pods):
        # Once a pod there outstays its grace period, that is the second sign: a lost node.
        story.world.lose("node")
    node.kubelet = False


@fault("nodes")
def nodes_recover(story: Story, choice: int) -> None:
    story.repair_nodes()


# RayJobs and KubeRay


@fault("rayjobs")
def user_deletes_the_rayjob(story: Story, choice: int) -> None:
    for job in story.world.jobs.values():
        if "deletionTimestamp" not in job["metadata"]:
            story.world.lose("attempt")
            story.world.delete_job(job)


@fault("rayjobs")
def user_deletes_the_raycluster(story: Story, choice: int) -> None:
    for cluster in list(story.world.clusters):
        pods = [pod for pod in story.world.pods if pod.cluster == cluster.uid]
        story.world.lose("preempted", *pods)
        story.world.remove_cluster(cluster)


@fault("rayjobs")
def kuberay_gives_up(story: Story, choice: int) -> None:
    job = story.world.jobs.get(story.world.number())
    if job and job["status"]["jobStatus"] == "RUNNING" and not story.world.trains_well():
        story.world.lose("attempt")
        kuberay.give_up(job)


@fault("rayjobs")
def kuberay_comes_and_goes(story: Story, choice: int) -> None:
    story.world.stop_kuberay(bool(choice % 2))


@fault("stuck")
def finalizer_stays(story: Story, choice: int) -> None:
    story.world.finalizer_stays = bool(choice % 2)


@fault("stuck")
def raycluster_is_orphaned(story: Story, choice: int) -> None:
    """The RayJob is deleted without what it owns."""
    for job in list(story.world.jobs.values()):
        cluster = story.world.cluster_of(job)
        # Nobody can tell whose it was that has not seen it with its owner.
        if cluster is not None and story.status.get("seen", {}).get("rayCluster") == cluster.uid:
            story.world.lose("attempt")
            cluster.orphaned = True
            cluster.object["metadata"]["ownerReferences"] = []
            story.world.delete_job(job)


@fault("crd")
def kuberay_is_uninstalled(story: Story, choice: int) -> None:
    """Its CRD cannot be seen for a while; its objects are as they were."""
    story.operator.kuberay = ("ok", "missing", "too-old")[choice % 3]
    story.world.stop_kuberay(bool(choice % 3))


@fault("validation")
def kuberay_refuses(story: Story, choice: int) -> None:
    story.world.invalid_jobs = bool(choice % 2)


# What others make with the run's labels

MOST_COPIES = 5
"""Of each kind; more show nothing else."""


def _put_in(story: Story, kind: str, copied: dict[str, Any], name: str) -> None:
    found = story.world.foreign.setdefault(kind, [])
    if len(found) < MOST_COPIES:
        copied["metadata"].pop("ownerReferences", None)
        copied["metadata"].update(name=name, uid=f"copy-{kind}-{len(found)}-{story.steps}")
        found.append(copied)


@fault("foreign")
def somebody_copies_a_pod(story: Story, choice: int) -> None:
    """As with `kubectl debug --copy-to --keep-labels`: of this attempt, or as if of the next."""
    pod = a_pod(
        number=story.world.number() + choice % 2,
        role=("head", "worker")[choice // 2 % 2],
        node=_node(story, choice).name,
        created_at=story.world.now,
        exit_code=(None, 1, 137)[choice // 4 % 3],
        terminating_at=story.world.now if choice % 5 == 0 else None,
        disruption="EvictionByEvictionAPI" if choice % 7 == 0 else None,
    )
    _put_in(story, "Pod", pod, f"copy-{choice}")


@fault("forged")
def somebody_forges_an_owner(story: Story, choice: int) -> None:
    """A pod that names the run's RayCluster as its controller, beside all pods that it keeps."""
    world = story.world
    found = world.foreign.setdefault("Pod", [])
    if not world.clusters or not world.trains_well() or len(found) >= MOST_COPIES:
        return
    cluster = world.clusters[-1]
    workers = [pod for pod in world.pods if pod.cluster == cluster.uid and not pod.is_head]
    if len([pod for pod in workers if not pod.terminating]) < world.count + world.standby:
        return
    role = ("worker", "head")[choice % 2]
    pod = a_pod(
        f"forged-{story.steps}-{choice}",
        uid=f"forged-{story.steps}-{choice}",
        number=cluster.number,
        role=role,
        node=_node(story, choice).name,
        ray_cluster=cluster.uid,
        created_at=world.now,
        exit_code=(None, 1, 137)[choice // 2 % 3],
        ended_because=("Error", "OOMKilled")[choice // 6 % 2],
        termination_message="it broke",
        terminating_at=world.now if choice // 12 % 3 == 1 else None,
        disruption="EvictionByEvictionAPI" if choice // 36 % 3 == 1 else None,
        reason="Evicted" if choice // 108 % 3 == 1 else None,
    )
    found.append(pod)


@fault("forged")
def forged_pods_end(story: Story, choice: int) -> None:
    """Those that live have waited for a moment at which a place may be free."""
    for pod in story.world.foreign.get("Pod", ()):
        if is_forged(pod):
            ended = a_pod(exit_code=137, ended_because=("Error", "OOMKilled")[choice % 2])
            pod["status"] = ended["status"] | {"phase": "Failed"}


@fault("forged")
def somebody_forges_the_next_attempt(story: Story, choice: int) -> None:
    """A pod of a RayCluster that is not there, named as one of the next attempt's."""
    found = story.world.foreign.setdefault("Pod", [])
    if len(found) < MOST_COPIES:
        number = story.status.get("attempt", 0) + 1
        name = f"next-{story.steps}-{choice}"
        role, node = ("worker", "head")[choice % 2], _node(story, choice).name
        made = {"number": number, "uid": name, "ray_cluster": f"nobody-{choice}"}
        found.append(a_pod(name, role=role, node=node, created_at=story.world.now, **made))


@fault("forged")
def forged_pods_are_deleted(story: Story, choice: int) -> None:
    story.world.foreign.pop("Pod", None)


@fault("foreign")
def somebody_copies_a_ray_cluster(story: Story, choice: int) -> None:
    copied = a_ray_cluster(story.world.number() + choice % 2)
    copied["spec"] = {}
    _put_in(story, "RayCluster", copied, f"copy-{choice}")


@fault("foreign")
def somebody_copies_a_ray_job(story: Story, choice: int) -> None:
    number = story.world.number() + choice % 2
    _put_in(story, "RayJob", a_ray_job(number, status="FAILED"), f"copy-{choice}")


@fault("foreign")
def somebody_takes_the_next_name(story: Story, choice: int) -> None:
    number = story.status.get("attempt", 0) + 1
    _put_in(story, "RayJob", a_ray_job(number), f"digits-{number}")


@fault("foreign")
def copies_are_deleted(story: Story, choice: int) -> None:
    story.world.foreign.clear()
