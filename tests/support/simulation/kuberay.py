"""KubeRay: RayJobs become RayClusters, these become pods, and the driver is submitted."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ..builders import a_ray_cluster
from .driver import Driver
from .machines import new_pod

if TYPE_CHECKING:
    from .world import Cluster, World

TERMINAL = ("Complete", "Failed", "ValidationFailed")

UNREACHABLE_S = 300.0
"""Silence of a dashboard after which KubeRay gives a RayJob up."""


def reconcile(world: World) -> None:
    """One pass over everything."""
    for number, job in list(world.jobs.items()):
        if "deletionTimestamp" in job["metadata"]:
            if not world.finalizer_stays:
                world.remove_job(number)
            continue
        _reconcile_job(world, number, job)


def _reconcile_job(world: World, number: int, job: dict[str, Any]) -> None:
    status = job["status"]
    if status["jobDeploymentStatus"] in TERMINAL:
        return
    cluster = world.cluster_of(job)
    if job["spec"].get("suspend"):
        status.update(jobStatus="", jobDeploymentStatus="Suspended")
        if cluster is not None:
            for pod in world.remove_cluster(cluster):
                pod.lost = True  # of the queue's loss, noted when it took the capacity back
        return
    if world.invalid_jobs and not status["jobDeploymentStatus"]:
        status.update(jobDeploymentStatus="ValidationFailed", message="the spec is not valid")
        world.refused.add(number)
        return
    if cluster is None:
        cluster = world.add_cluster(number, job)
        status.update(jobStatus="", jobDeploymentStatus="Initializing")
    _replace_pods(world, cluster)
    heads = [pod for pod in world.pods if pod.cluster == cluster.uid and pod.is_head]
    cluster.object["status"]["head"] = {"podName": heads[0].name if heads else ""}
    _submit(world, job, cluster)


def _replace_pods(world: World, cluster: Cluster) -> None:
    """Terminating pods count as replicas; ended ones are deleted and replaced."""
    if world.pod_quota:
        cluster.object["status"]["conditions"] = [
            {
                "type": "ReplicaFailure",
                "status": "True",
                "message": 'pods "x" is forbidden: exceeded quota: team',
            }
        ]
    else:
        cluster.object["status"]["conditions"] = []
    own = [pod for pod in world.pods if pod.cluster == cluster.uid]
    for pod in own:
        if pod.phase in ("Failed", "Succeeded") and not pod.terminating:
            pod.leave(world.now, 0 if pod.node is None else 35)
    if world.pod_quota:
        return
    if not any(pod.is_head for pod in own):
        _create(world, cluster, "head")
        return
    workers = [pod for pod in own if not pod.is_head]
    (group,) = cluster.object["spec"]["workerGroupSpecs"]
    named = (group.get("scaleStrategy") or {}).get("workersToDelete") or ()
    for pod in workers:
        if pod.name in named:
            pod.leave(world.now)
    counted = [pod for pod in workers if pod.name not in named]
    for pod in counted[group["replicas"] :]:
        pod.lost = True  # not by the operator's will: it names those that are too many
        pod.leave(world.now)
    for _ in range(group["replicas"] - len(counted)):
        _create(world, cluster, "worker")


def _create(world: World, cluster: Cluster, role: str) -> None:
    world.created_pods += 1
    name = f"digits-{cluster.number}-{role}-{world.created_pods:05d}"
    pod = new_pod(name, cluster.number, role, cluster.uid, world.now)
    spec = cluster.object["spec"]
    group = spec["headGroupSpec"] if pod.is_head else spec["workerGroupSpecs"][0]
    template = group["template"]
    pod.object["spec"]["affinity"] = copy.deepcopy(template["spec"].get("affinity"))
    pod.object["metadata"]["labels"].update(template["metadata"]["labels"])
    world.pods.append(pod)


def _submit(world: World, job: dict[str, Any], cluster: Cluster) -> None:
    if cluster.number < world.number():
        return  # created late: its driver does not get the lease, which a later attempt has
    status = job["status"]
    head = world.live_head(cluster)
    driver = world.driver
    if driver is not None and driver.head is head and head is not None:
        cluster.unreachable_since = None
        if driver.over:
            good = driver.exit_code == 0
            status.update(
                jobStatus="SUCCEEDED" if good else "FAILED",
                jobDeploymentStatus="Complete" if good else "Failed",
                reason="" if good else "AppFailed",
                message="" if good else f"Job failed: exit code {driver.exit_code}",
            )
        else:
            status.update(jobStatus="RUNNING", jobDeploymentStatus="Running")
        return
    if head is None:
        if status["jobStatus"] == "RUNNING":
            cluster.unreachable_since = cluster.unreachable_since or world.now
            if world.now - cluster.unreachable_since >= UNREACHABLE_S:
                give_up(job)
        return
    workers = [pod for pod in world.pods if pod.cluster == cluster.uid and not pod.is_head]
    ready = sum(pod.alive and not pod.terminating for pod in workers)
    (group,) = cluster.object["spec"]["workerGroupSpecs"]
    if status["jobStatus"] != "RUNNING" and not ready == len(workers) == group["replicas"]:
        return  # the first submission waits for every worker that is asked for
    world.driver = Driver(
        cluster.number,
        head,
        world.bucket,
        world.total_steps,
        world.count,
        world.per_pod,
        world.minimum,
    )
    world.driver.anonymous = world.anonymous_records
    if world.storage_since is not None:
        world.driver.storage_since = world.now
    status.update(jobStatus="RUNNING", jobDeploymentStatus="Running")


def give_up(job: dict[str, Any]) -> None:
    """The dashboard did not answer for too long."""
    job["status"].update(
        jobDeploymentStatus="Failed",
        reason="JobStatusCheckTimeoutExceeded",
        message="the status of the job could not be read for 300 s",
    )


def ray_cluster_object(number: int, generation: int) -> dict[str, Any]:
    """A RayCluster as KubeRay names it."""
    found = a_ray_cluster(number)
    found["metadata"].update(
        name=f"digits-{number}-{generation:05d}", uid=f"cluster-{number}-{generation}"
    )
    return found
