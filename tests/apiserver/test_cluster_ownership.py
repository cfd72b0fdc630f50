"""An object that is not the run's own is never touched, whatever its name."""

import pytest

from support.apiserver import ApiServer
from support.operators import a_ray_job, a_run, watching
from trainingrun.api.v1alpha1 import API_VERSION, KIND, TrainingRun
from trainingrun.cluster.api_client import Conflict, Rejected
from trainingrun.rendering import RenderSettings, support_objects

NETWORKING = "networking.k8s.io/v1"


def policy(namespace: str, name: str = "default-deny", **metadata) -> dict:
    return {
        "apiVersion": NETWORKING,
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    }


def owner(run: dict) -> dict:
    metadata = run["metadata"]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


def ours(run: dict, manifest: dict) -> dict:
    return manifest | {"metadata": manifest["metadata"] | {"ownerReferences": [owner(run)]}}


def ray_job(run: dict, entrypoint: str = "true") -> dict:
    return ours(run, a_ray_job(run, entrypoint=entrypoint))


def unchanged(server: ApiServer, before: dict) -> bool:
    metadata = before["metadata"]
    now = server.get(before["apiVersion"], before["kind"], metadata["name"], metadata["namespace"])
    return now["metadata"]["resourceVersion"] == metadata["resourceVersion"]


async def test_a_user_s_network_policy_of_the_name_of_ours_is_left_alone(apiserver, namespace):
    run = apiserver.create(a_run(namespace, "default-deny"))
    theirs = apiserver.create(policy(namespace))
    async with watching(apiserver, namespace) as cluster:
        with pytest.raises(Rejected, match="NetworkPolicy named default-deny exists and is not"):
            await cluster.apply(ours(run, policy(namespace)))
    assert unchanged(apiserver, theirs)


async def test_a_run_called_default_deny_and_a_policy_of_that_name_live_side_by_side(
    apiserver, namespace
):
    theirs = apiserver.create(policy(namespace))
    run = TrainingRun.model_validate(apiserver.create(a_run(namespace, "default-deny")))
    async with watching(apiserver, namespace) as cluster:
        for manifest in support_objects(run, RenderSettings()):
            await cluster.apply(manifest)
    assert unchanged(apiserver, theirs)


async def test_our_own_policy_is_made_anew_as_it_should_be(apiserver, namespace):
    run = apiserver.create(a_run(namespace))
    async with watching(apiserver, namespace) as cluster:
        wanted = ours(run, policy(namespace, "digits-ray"))
        await cluster.apply(wanted)
        changed = apiserver.get(NETWORKING, "NetworkPolicy", "digits-ray", namespace)
        changed["spec"]["policyTypes"] = ["Egress"]
        apiserver.replace(changed)
        await cluster.apply(wanted)
    now = apiserver.get(NETWORKING, "NetworkPolicy", "digits-ray", namespace)
    assert now["spec"]["policyTypes"] == ["Ingress"]


async def test_a_former_run_s_policy_of_the_same_name_is_left_alone(apiserver, namespace):
    former = apiserver.create(a_run(namespace, "former"))
    theirs = apiserver.create(ours(former, policy(namespace, "digits-ray")))
    run = apiserver.create(a_run(namespace))
    async with watching(apiserver, namespace) as cluster:
        with pytest.raises(Rejected, match="is of another run"):
            await cluster.apply(ours(run, policy(namespace, "digits-ray")))
    assert unchanged(apiserver, theirs)


async def test_a_ray_job_that_only_carries_the_run_s_labels_is_left_alone(apiserver, namespace):
    run = apiserver.create(a_run(namespace))
    forged = ray_job(run, entrypoint="theirs")
    del forged["metadata"]["ownerReferences"]
    forged = apiserver.create(forged)
    async with watching(apiserver, namespace) as cluster:
        assert len((await cluster.observe(namespace, "digits")).ray_jobs) == 1
        with pytest.raises(Rejected, match="is not this run's"):
            await cluster.apply(ray_job(run))
    assert unchanged(apiserver, forged)


async def test_a_ray_job_made_anew_by_somebody_else_meanwhile_is_a_conflict(apiserver, namespace):
    run = apiserver.create(a_run(namespace))
    async with watching(apiserver, namespace, deaf=True) as cluster:
        await cluster.apply(ray_job(run))
        apiserver.request("DELETE", apiserver.path(ray_job(run)))
        theirs = apiserver.create(ray_job(run, entrypoint="theirs"))
        with pytest.raises(Conflict):
            await cluster.apply(ray_job(run))
    assert unchanged(apiserver, theirs)


async def test_our_own_ray_job_that_the_watch_has_not_shown_yet_is_not_foreign(
    apiserver, namespace
):
    """Another process of ours, which led until now, has just created it."""
    run = apiserver.create(a_run(namespace))
    async with watching(apiserver, namespace) as cluster:
        made = apiserver.create(ray_job(run))
        applied = await cluster.apply(ray_job(run))
    assert applied["metadata"]["uid"] == made["metadata"]["uid"]


async def test_what_kueue_has_admitted_is_not_suspended_by_a_second_try(apiserver, namespace):
    """The answer to the first one was lost, and Kueue was quicker than the next reconcile."""
    run = apiserver.create(a_run(namespace))
    manifest = ray_job(run)
    manifest["spec"] |= {"suspend": True}
    async with watching(apiserver, namespace) as cluster:
        made = await cluster.apply(manifest)
        assert made["spec"]["suspend"] is True
        assert (await cluster.apply(manifest))["spec"]["suspend"] is True
        admitted = apiserver.get(made["apiVersion"], "RayJob", "digits-1", namespace)
        admitted["spec"]["suspend"] = False
        apiserver.replace(admitted)
        for _ in range(2):
            assert (await cluster.apply(manifest))["spec"]["suspend"] is False


async def test_a_secret_that_exists_is_neither_read_nor_changed(apiserver, namespace):
    run = apiserver.create(a_run(namespace))
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "taken", "namespace": namespace},
        "data": {"token": "dGhlaXJz"},
    }
    theirs = apiserver.create(secret)
    async with watching(apiserver, namespace) as cluster:
        assert await cluster.create(ours(run, secret | {"data": {"token": "b3Vycw=="}})) is False
    assert unchanged(apiserver, theirs)
