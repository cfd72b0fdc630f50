"""Spot and on-demand nodes, with a real API server and operator. Node groups, autoscalers, the
scheduler and KubeRay's pods are simulated, see `support/simulated_groups.py`.
"""

import asyncio
import contextlib
from dataclasses import replace

import pytest

from support.apiserver import ApiError, ApiServer
from support.operators import (
    RAY_API,
    a_run,
    credentials_of,
    document,
    eventually,
    running,
    settings_for,
)
from support.simulated_groups import Cloud, Group, SimulatedCloud, growing
from trainingrun import rendering
from trainingrun.api.v1alpha1 import API_VERSION, KIND, TrainingRun
from trainingrun.cluster.live_cluster import KubernetesCluster
from trainingrun.controller.operator import Operator
from trainingrun.reconciling.pod_status import pod_ref
from trainingrun.rendering import Placement, RenderSettings
from trainingrun.rendering.platforms import PlatformName
from trainingrun.rendering.scheduling import placement_of_cluster

EKS = "eks.amazonaws.com/capacityType"
KARPENTER = "karpenter.sh/capacity-type"
AKS = "kubernetes.azure.com/scalesetpriority"
GKE = "cloud.google.com/gke-spot"

CLOUDS = {
    "eks": Cloud(
        "cluster-autoscaler",
        (Group("on-demand", {EKS: "ON_DEMAND"}), Group("spot", {EKS: "SPOT"})),
    ),
    "aks": Cloud(
        "cluster-autoscaler",
        (Group("on-demand", {}), Group("spot", {AKS: "spot"}, ((AKS, "spot"),))),
    ),
    "gke": Cloud(
        "gke",
        (Group("on-demand", {}), Group("spot", {GKE: "true"}, ((GKE, "true"),))),
    ),
    "karpenter": Cloud(
        "karpenter",
        (Group("on-demand", {KARPENTER: "on-demand"}), Group("spot", {KARPENTER: "spot"})),
    ),
}
"""By platform. The on-demand group comes first, where the autoscaler has the choice."""

FALLBACK = {"afterPreemptions": 1, "afterPendingSeconds": 10}


def without_spot(cloud: Cloud) -> Cloud:
    groups = (replace(group, stocked=group.name != "spot") for group in cloud.groups)
    return replace(cloud, groups=tuple(groups))


POOL = ("pool", "research")
"""Label and taint of the nodes of a queue's flavor."""


def of_flavor(cloud: Cloud) -> Cloud:
    """All of its nodes are the flavor's."""
    groups = (
        replace(group, labels={**group.labels, **dict([POOL])}, taints=(*group.taints, POOL))
        for group in cloud.groups
    )
    return replace(cloud, groups=tuple(groups))


async def admit(apiserver: ApiServer, namespace: str) -> None:
    """What Kueue writes into the workers of the run's RayJob, before KubeRay reads it."""

    def found() -> dict | None:
        with contextlib.suppress(ApiError):
            return apiserver.get(RAY_API, "RayJob", "digits-1", namespace)

    job = await eventually(found)
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    key, value = POOL
    pod = group["template"]["spec"]
    pod["nodeSelector"] = {**pod.get("nodeSelector", {}), key: value}
    pod["tolerations"].append({"key": key, "value": value, "effect": "NoSchedule"})
    apiserver.replace(job)


@pytest.fixture
def cloud_of(apiserver, namespace):
    made = []

    def make(cloud: Cloud, where: str = namespace) -> SimulatedCloud:
        made.append(SimulatedCloud(apiserver, where, cloud))
        return made[-1]

    yield make
    for cloud in made:
        cloud.clear()


async def workers_run(cloud: SimulatedCloud, number: int) -> list[dict]:
    """Once so many workers have a node and none is going."""

    def found() -> list[dict]:
        cloud.look()
        workers = cloud.pods("worker")
        well = [
            pod
            for pod in workers
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        ]
        return well if len(well) == len(workers) == number else []

    return await eventually(found)


@pytest.mark.parametrize("platform", CLOUDS)
async def test_spot_groups_grow_for_a_run_that_prefers_spot(
    apiserver, namespace, new_operator, status, cloud_of, platform
):
    cloud = cloud_of(CLOUDS[platform])
    async with running(await new_operator(platform=platform)):
        workers = {"count": 2, "capacity": {"type": "PreferSpot"}}
        apiserver.create(a_run(namespace, workers=workers))
        found = await workers_run(cloud, 2)
        assert {cloud.group_of(pod) for pod in found} == {"spot"}
        assert cloud.grown == ["spot", "spot"]
        await eventually(lambda: (status().get("capacity") or {}).get("spot") == 2)
    assert [worker["capacity"] for worker in status()["capacity"]["workers"]] == ["Spot", "Spot"]


@pytest.mark.parametrize(
    ("platform", "grows"),
    [("eks", "on-demand"), ("aks", "on-demand"), ("gke", "on-demand"), ("karpenter", "spot")],
)
def test_for_a_mere_preference_they_do_not_grow_but_on_karpenter(platform, grows):
    """That is why it is required first."""
    raw = a_run("team-a", workers={"count": 2, "capacity": {"type": "PreferSpot"}})
    run, settings = TrainingRun.model_validate(raw), RenderSettings(platform=platform)
    pod = rendering.worker_nodes(run, 1, settings, Placement("Any"))["spec"]
    found = growing(pod, CLOUDS[platform])
    assert found is not None
    assert found.name == grows


async def test_where_no_spot_node_is_to_be_had_it_runs_on_on_demand_nodes(
    apiserver, head, cloud_of
):
    async def runs_on(platform: PlatformName) -> None:
        namespace = apiserver.new_namespace()
        cloud = cloud_of(without_spot(CLOUDS[platform]), namespace)
        settings = settings_for(namespace, platform=platform)
        async with running(Operator(settings, credentials_of(apiserver), head.target)):
            capacity = {"type": "PreferSpot", "fallback": FALLBACK}
            run = a_run(namespace, workers={"count": 1, "capacity": capacity})
            apiserver.create(run)
            (found,) = await workers_run(cloud, 1)
        assert cloud.group_of(found) == "on-demand"
        status = apiserver.get(API_VERSION, KIND, "digits", namespace)["status"]
        assert status["capacity"]["message"] == (
            "New workers go to any nodes, spot preferred: "
            "a worker pod has found no spot node for 10 s"
        )

    async with asyncio.TaskGroup() as both:  # each waits for these 10 s
        both.create_task(runs_on("gke"))
        both.create_task(runs_on("karpenter"))


async def test_the_replacement_of_a_lost_spot_node_goes_to_an_on_demand_node(
    apiserver, namespace, kuberay, head, new_operator, status, cloud_of, monkeypatch
):
    """And nothing else changes, though the operator dies between the decision and the patch: the
    node is one of the flavor to which Kueue has admitted the run.
    """
    cloud = cloud_of(of_flavor(CLOUDS["gke"]))
    died = asyncio.Event()

    async def dies(self, ray_cluster, template):
        died.set()
        await asyncio.Event().wait()  # as if the process were gone: it never comes back

    capacity = {"type": "Spot", "fallback": FALLBACK}
    with monkeypatch.context() as patched:
        patched.setattr(KubernetesCluster, "place_workers", dies)
        async with running(await new_operator(platform="gke")):
            apiserver.create(a_run(namespace, workers={"count": 2, "capacity": capacity}))
            await admit(apiserver, namespace)
            lost, other = await workers_run(cloud, 2)
            kuberay.says("digits-1", "RUNNING", "Running")
            head.document = document(step=3, worldSize=2)
            await eventually(lambda: status().get("phase") == "Running")
            before = cloud.cluster(), *cloud.pods("head")
            cloud.takes_back(lost["spec"]["nodeName"])
            await asyncio.wait_for(died.wait(), 60)
    assert status()["capacity"]["type"] == "OnDemand"
    assert placement_of_cluster(cloud.cluster()) == "spot"
    async with running(await new_operator(platform="gke")):
        await eventually(lambda: placement_of_cluster(cloud.cluster()) == "on-demand")
        cloud.is_gone(lost["spec"]["nodeName"])
        found = await workers_run(cloud, 2)
        await eventually(lambda: status()["capacity"].get("onDemand") == 1)
    by_group = {cloud.group_of(pod): pod["metadata"] for pod in found}
    assert by_group["spot"]["uid"] == other["metadata"]["uid"], "what runs stays"
    assert by_group["on-demand"]["labels"]["trainingrun.dev/placement"] == "on-demand"
    assert [pod["spec"]["nodeSelector"] for pod in found] == [dict([POOL])] * 2
    after = cloud.cluster(), *cloud.pods("head")
    assert [item["metadata"]["uid"] for item in after] == [
        item["metadata"]["uid"] for item in before
    ]
    assert kuberay.jobs() == ["digits-1"]
    told = status()
    (loss,) = told["disruptions"]["history"]
    assert (loss["reason"], loss["capacity"]) == ("Preempted", "Spot")
    assert loss["since"] <= loss["time"]
    assert told["disruptions"].get("workerFailures", 0) == 0
    (waiting,) = [one for one in told["conditions"] if one["type"] == "Waiting"]
    assert (waiting["status"], waiting["reason"]) == ("True", "CapacityFallback")


async def test_a_pod_that_has_got_a_node_meanwhile_is_not_deleted(
    apiserver, namespace, new_operator, status, cloud_of
):
    """The scheduler may find a node between what the operator saw and its deletion."""
    cloud = cloud_of(without_spot(CLOUDS["gke"]))
    async with running(await new_operator(platform="gke")) as operator:
        capacity = {"type": "Spot"}
        apiserver.create(a_run(namespace, workers={"count": 1, "capacity": capacity}))
        await eventually(lambda: cloud.look() or cloud.pods("worker"))
        (seen,) = cloud.pods("worker")
        reference = pod_ref(seen)
        cloud.cloud = CLOUDS["gke"]
        await workers_run(cloud, 1)
        version = seen["metadata"]["resourceVersion"]
        await operator.cluster.delete(reference, unchanged_since=version)
        (left,) = cloud.pods("worker")
        assert "deletionTimestamp" not in left["metadata"]
        await operator.cluster.delete(
            reference, unchanged_since=left["metadata"]["resourceVersion"]
        )
        assert "deletionTimestamp" in cloud.pods("worker")[0]["metadata"]
