"""The number of worker pods of a live RayCluster, against a real API server and KubeRay's CRD."""

import pytest

from support.operators import RAY_API, a_run, owned_by, watching
from trainingrun import rendering
from trainingrun.api.v1alpha1 import TrainingRun
from trainingrun.cluster.api_client import Conflict, Rejected
from trainingrun.reconciling.model import Ref

NAME = "digits-1-abcde"


def a_cluster(apiserver, namespace: str, run: dict) -> dict:
    """The RayCluster that KubeRay makes of the rendered RayJob."""
    elastic = TrainingRun.model_validate(
        {**run, "spec": {**run["spec"], "workers": {"count": 3, "minimum": 1}}}
    )
    job = rendering.attempt(elastic, 1, rendering.RenderSettings())
    return apiserver.create(
        {
            "apiVersion": RAY_API,
            "kind": "RayCluster",
            "metadata": owned_by(run, NAME, attempt="1"),
            "spec": job["spec"]["rayClusterSpec"],
        }
    )


def ref_of(found: dict) -> Ref:
    metadata = found["metadata"]
    return Ref(RAY_API, "RayCluster", metadata["namespace"], NAME, metadata["uid"])


async def test_fewer_worker_pods_are_asked_for_and_all_again(apiserver, namespace):
    run = apiserver.create(a_run(namespace))
    made = a_cluster(apiserver, namespace, run)
    (group,) = made["spec"]["workerGroupSpecs"]
    assert (group["minReplicas"], group["replicas"], group["maxReplicas"]) == (1, 3, 3)
    async with watching(apiserver, namespace) as cluster:
        version = made["metadata"]["resourceVersion"]
        await cluster.scale_workers(ref_of(made), 1, ("w-2", "w-3"), version)
        small = apiserver.get(RAY_API, "RayCluster", NAME, namespace)
        (group,) = small["spec"]["workerGroupSpecs"]
        assert group["replicas"] == 1
        assert group["scaleStrategy"] == {"workersToDelete": ["w-2", "w-3"]}
        (seen,) = (await cluster.observe(namespace, "digits")).ray_clusters
        assert seen["spec"]["workerGroupSpecs"][0]["replicas"] == 1, "a write is seen at once"

        await cluster.scale_workers(ref_of(made), 1, ("w-2", "w-3"))
        again = apiserver.get(RAY_API, "RayCluster", NAME, namespace)
        assert again["metadata"]["resourceVersion"] == small["metadata"]["resourceVersion"]

        await cluster.scale_workers(ref_of(made), 3, ("w-3",))
        await cluster.scale_workers(ref_of(made), 3, ())
        full = apiserver.get(RAY_API, "RayCluster", NAME, namespace)
        (group,) = full["spec"]["workerGroupSpecs"]
        assert (group["replicas"], group["scaleStrategy"]) == (3, {})
        del group["scaleStrategy"]
        assert full["spec"] == made["spec"]


async def test_a_ray_cluster_that_has_changed_is_left_alone(apiserver, namespace):
    """A pod may have become ready, so that KubeRay has submitted the driver."""
    run = apiserver.create(a_run(namespace))
    made = a_cluster(apiserver, namespace, run)
    version = made["metadata"]["resourceVersion"]
    changed = apiserver.request(
        "PATCH",
        apiserver.path(made) + "/status",
        {"status": {"readyWorkerReplicas": 2}},
        content_type="application/merge-patch+json",
    )
    assert changed["metadata"]["resourceVersion"] != version
    async with watching(apiserver, namespace) as cluster:
        with pytest.raises(Conflict):
            await cluster.scale_workers(ref_of(made), 1, ("w-2",), version)
        (group,) = apiserver.get(RAY_API, "RayCluster", NAME, namespace)["spec"]["workerGroupSpecs"]
        assert group["replicas"] == 3


async def test_another_ray_cluster_of_the_same_name_inherits_nothing(apiserver, namespace):
    run = apiserver.create(a_run(namespace))
    made = a_cluster(apiserver, namespace, run)
    async with watching(apiserver, namespace, deaf=True) as cluster:
        former = ref_of(made)
        stale = Ref(RAY_API, "RayCluster", namespace, NAME, "00000000-0000-0000-0000-000000000000")
        await cluster.scale_workers(stale, 1, ())
        kept = apiserver.get(RAY_API, "RayCluster", NAME, namespace)
        assert kept["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]

        apiserver.request("DELETE", apiserver.path(made))
        await cluster.scale_workers(former, 1, ())  # gone is fine
        again = a_cluster(apiserver, namespace, run)
        with pytest.raises(Rejected):  # the cache still has the former one
            await cluster.scale_workers(former, 1, ())
        assert apiserver.get(RAY_API, "RayCluster", NAME, namespace) == again
