"""KubeRay missing, too old, installed later: on an API server of the test's own."""

import asyncio
import contextlib

import pytest
import yaml

from support.apiserver import ApiServer, running_apiserver
from support.binaries import kuberay_crds
from support.operators import a_run, configuration_of, eventually
from trainingrun.api.crd import crd
from trainingrun.cluster.connection import Connection
from trainingrun.cluster.kuberay import NEEDED_FIELD, verdict
from trainingrun.cluster.live import KubernetesCluster


@pytest.fixture
def bare(apiserver):
    """Only TrainingRun is installed. Asks for `apiserver` so that it skips, or not, alike."""
    with running_apiserver() as server:
        server.install_crd(crd())
        yield server


def crds() -> list[str]:
    return [file.read_text() for file in kuberay_crds()]


def without_needed_field(text: str) -> dict:
    found = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for version in found["spec"]["versions"]:
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        spec.pop(NEEDED_FIELD, None)
    return found


async def test_kuberay_may_come_after_the_operator_and_after_a_version_that_is_too_old(
    bare: ApiServer,
):
    rayclusters, rayjobs = crds()
    old = await asyncio.to_thread(without_needed_field, rayjobs)
    namespace = bare.new_namespace()
    bare.create(a_run(namespace))
    connection = Connection(await configuration_of(bare))
    cluster = KubernetesCluster(connection, [namespace], look_for_kuberay_s=0.3)
    task = asyncio.create_task(cluster.run())
    told = []
    cluster.subscribe(lambda *key: told.append(key))

    async def kuberay() -> str:
        return (await cluster.observe(namespace, "digits")).kuberay

    async def becomes(wanted: str) -> None:
        async with asyncio.timeout(60):
            while await kuberay() != wanted:  # noqa: ASYNC110 - the cluster tells runs, not us
                await asyncio.sleep(0.05)

    try:
        async with asyncio.timeout(30):
            await cluster.wait_synced()
        assert await kuberay() == "missing"
        await asyncio.to_thread(bare.install_crd, rayclusters)
        await asyncio.to_thread(bare.install_crd, old)
        await becomes("too-old")
        told.clear()
        await asyncio.to_thread(bare.install_crd, rayjobs)
        await becomes("ok")
        await eventually(lambda: (namespace, "digits") in told)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await connection.close()


def test_the_installed_crd_is_judged_by_its_served_v1():
    version = {
        "name": "v1",
        "served": True,
        "schema": {"openAPIV3Schema": {"properties": {"spec": {"properties": {NEEDED_FIELD: {}}}}}},
    }
    assert verdict({"spec": {"versions": [version]}}) == "ok"
    assert verdict({"spec": {"versions": [version | {"served": False}]}}) == "too-old"
    assert verdict({"spec": {"versions": [version | {"name": "v1alpha1"}]}}) == "too-old"
