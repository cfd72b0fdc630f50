"""What can happen: each fault is a function of the simulation and a whole number that chooses.

They come in groups, so that a story can do without some of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from trainingrun.api.contract import RecordKind

from . import kuberay
from .machines import Node, Pod

if TYPE_CHECKING:
    from .story import Story

Happening = Callable[["Story", int], None]


class Fault(NamedTuple):
    """Something that can happen."""

    group: str
    happen: Happening


FAULTS: list[Fault] = []
GROUPS: list[str] = []


def fault(group: str) -> Callable[[Happening], Happening]:
    """Register a fault in its group."""
    if group not in GROUPS:
        GROUPS.append(group)

    def register(happen: Happening) -> Happening:
        FAULTS.append(Fault(group, happen))
        return happen

    return register


def _pod(story: Story, choice: int, *, workers: bool = False) -> Pod | None:
    found = [
        pod
        for pod in story.world.pods
        if not pod.terminating and pod.phase == "Running" and not (workers and pod.is_head)
    ]
    return found[choice % len(found)] if found else None


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
    if pod := _pod(story, choice):
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
    if pod := _pod(story, choice):
        story.world.lose(_kind(pod, "worker"), pod)
        pod.end(story.world.now, (1, 137, 143, 0)[choice % 4], message="Ray: it broke")


@fault("pods")
def kills_a_process(story: Story, choice: int) -> None:
    """The training process of a worker; its pod lives on."""
    driver = story.world.driver
    if driver and driver.trains:
        story.world.lose("process")
        driver.record(story.world.now, RecordKind.WORKER_LOST, None)


@fault("memory")
def runs_out_of_memory(story: Story, choice: int) -> None:
    """Workers that do the same need the same: some or all go over the limit in one failure."""
    workers = [
        pod
        for pod in story.world.pods
        if not pod.is_head and not pod.terminating and pod.phase == "Running"
    ]
    hit = workers[: 1 + choice % max(len(workers), 1)]
    story.world.lose("oom", *hit)
    for pod in hit:
        pod.end(story.world.now, 137, "OOMKilled")


@fault("memory")
def head_runs_out_of_memory(story: Story, choice: int) -> None:
    for pod in story.world.pods:
        if pod.is_head and not pod.terminating and pod.phase == "Running":
            story.world.lose("oom", pod)
            pod.end(story.world.now, 137, "OOMKilled")


@fault("sidecars")
def sidecar_ends(story: Story, choice: int) -> None:
    """Of itself, out of memory, or restarted after an error: none of it is the training's."""
    if pod := _pod(story, choice):
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
    """One sign, and one alone: what runs there goes on."""
    node = _node(story, choice)
    if node.well and any(pod.node is node for pod in story.world.pods):
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
    story.world.kuberay_away = bool(choice % 2)


@fault("stuck")
def finalizer_stays(story: Story, choice: int) -> None:
    story.world.finalizer_stays = bool(choice % 2)


@fault("stuck")
def raycluster_is_orphaned(story: Story, choice: int) -> None:
    """The RayJob is deleted without what it owns."""
    for job in list(story.world.jobs.values()):
        cluster = story.world.cluster_of(job)
        if cluster is not None:
            story.world.lose("attempt")
            cluster.orphaned = True
            cluster.object["metadata"]["ownerReferences"] = []
            story.world.delete_job(job)


@fault("crd")
def kuberay_is_uninstalled(story: Story, choice: int) -> None:
    """Its CRD cannot be seen for a while; its objects are as they were."""
    story.operator.kuberay = ("ok", "missing", "too-old")[choice % 3]
    story.world.kuberay_away = bool(choice % 3)


@fault("validation")
def kuberay_refuses(story: Story, choice: int) -> None:
    story.world.invalid_jobs = bool(choice % 2)


# The runtime


@fault("runtime")
def training_raises(story: Story, choice: int) -> None:
    driver = story.world.driver
    if driver and not driver.over:
        kind = ("Application", "Storage", "Infrastructure")[choice % 3]
        observed = not story.deafening
        story.world.lose("application" if kind == "Application" or not observed else "attempt")
        driver.fail(story.world.now, 1, {"kind": kind, "message": "ValueError: " + "x" * 200})


@fault("runtime")
def driver_ends_without_a_word(story: Story, choice: int) -> None:
    driver = story.world.driver
    if driver and not driver.over:
        story.world.lose("application" if choice % 2 else "attempt")
        driver.mute = bool(choice % 4 > 1)
        driver.fail(story.world.now, 1 if choice % 2 else 3, None)


@fault("silence")
def driver_hangs(story: Story, choice: int) -> None:
    driver = story.world.driver
    if driver and not driver.over and driver.epoch == 0:
        driver.hung = True


@fault("silence")
def driver_says_nothing(story: Story, choice: int) -> None:
    driver = story.world.driver
    if driver and not driver.over:
        driver.mute = bool(choice % 2)


@fault("silence")
def polls_fail(story: Story, choice: int) -> None:
    """A NetworkPolicy, or a token that the head does not take."""
    story.world.polls_fail = bool(choice % 2)


@fault("runtime")
def bucket_goes_away(story: Story, choice: int) -> None:
    world = story.world
    world.storage_since = world.now if choice % 2 else None
    if world.driver:
        world.driver.storage_since = world.storage_since


@fault("records")
def records_name_no_pods(story: Story, choice: int) -> None:
    story.world.anonymous_records = bool(choice % 2)
    if story.world.driver:
        story.world.driver.anonymous = bool(choice % 2)


@fault("records")
def an_old_document_is_read_late(story: Story, choice: int) -> None:
    history = story.documents
    if history:
        story.operator.late = history[choice % len(history)]


# The operator and its view


@fault("staleness")
def a_watch_fails(story: Story, choice: int) -> None:
    kind = ("Pod", "RayJob", "RayCluster", "Node")[choice % 4]
    message = "pods is forbidden: User cannot list resource"
    story.operator.freeze(kind, message, empty=choice % 3 == 0)
    if choice % 3 == 0:
        story.operator.restart()


@fault("staleness")
def all_watches_work_again(story: Story, choice: int) -> None:
    story.operator.stale.clear()


@fault("refusals")
def objects_are_refused(story: Story, choice: int) -> None:
    kind = ("RayJob", "Secret", "NetworkPolicy", "")[choice % 4]
    message = ("exceeded quota: team", "admission webhook denied the request")[choice % 2]
    story.operator.refuses = {kind: message} if kind else {}


@fault("restarts")
def operator_restarts(story: Story, choice: int) -> None:
    story.operator.restart()


@fault("restarts")
def operator_is_away(story: Story, choice: int) -> None:
    story.operator.restart()
    story.operator.down = True
    story.wait((10, 60, 300, 700, 3600, 90000)[choice % 6])
    story.operator.down = False
    story.awake_since = story.world.now


# The queue and the user


@fault("queue")
def queue_takes_back(story: Story, choice: int) -> None:
    job = story.world.jobs.get(story.world.number())
    if job and not job["spec"]["suspend"] and job["status"]["jobDeploymentStatus"] == "Running":
        story.world.lose("queue")
        for pod in story.world.pods:
            pod.lost = True
        job["spec"]["suspend"] = True


@fault("queue")
def queue_admits(story: Story, choice: int) -> None:
    for job in story.world.jobs.values():
        job["spec"]["suspend"] = False


@fault("suspend")
def user_suspends(story: Story, choice: int) -> None:
    story.change(suspend=True)


@fault("suspend")
def user_resumes(story: Story, choice: int) -> None:
    story.change(suspend=False)


@fault("suspend")
def runtime_is_deaf(story: Story, choice: int) -> None:
    story.operator.deaf = bool(choice % 2)


@fault("budgets")
def user_changes_max_restarts(story: Story, choice: int) -> None:
    failures = copy.deepcopy(story.operator.spec.get("failures", {}))
    story.change(failures={**failures, "maxRestarts": choice % 5})


@fault("budgets")
def user_changes_max_preemptions(story: Story, choice: int) -> None:
    failures = copy.deepcopy(story.operator.spec.get("failures", {}))
    story.change(failures={**failures, "maxPreemptions": choice % 20 - 1})


@fault("budgets")
def user_sets_a_deadline(story: Story, choice: int) -> None:
    story.change(activeDeadlineSeconds=(None, 600, 3600, 86400)[choice % 4])


@fault("spec")
def spec_becomes_invalid(story: Story, choice: int) -> None:
    story.operator.broken_spec = bool(choice % 2)
    story.operator.generation += 1


@fault("end")
def training_is_nearly_done(story: Story, choice: int) -> None:
    story.finish_soon()


# Time


@fault("time")
def a_while_passes(story: Story, choice: int) -> None:
    story.wait((30, 60, 120, 300, 700, 1800)[choice % 6])


@fault("time")
def long_passes(story: Story, choice: int) -> None:
    story.wait((3600, 7200, 86400, 3 * 86400)[choice % 4])
