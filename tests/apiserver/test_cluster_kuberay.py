"""KubeRay missing, too old, installed later: on an API server of the test's own."""

import asyncio
import contextlib
from urllib.parse import urlsplit

import pytest
import yaml

from support.apiserver import APPLY, MERGE, ApiServer, running_apiserver
from support.binaries import kuberay_crds
from support.operators import (
    RAY_API,
    Proxy,
    WatchOnly,
    a_run,
    credentials_of,
    eventually,
    kopf_running,
    owned_by,
    watching,
)
from support.permissions import CLUSTER_RULES
from trainingrun.api.crd import crd
from trainingrun.cluster import kuberay as kuberay_module
from trainingrun.cluster import watches as watch_module
from trainingrun.cluster.api_client import ClusterError, Connection
from trainingrun.cluster.kuberay import (
    BINDING_PATH,
    NEEDED_FIELD,
    KubeRayNamespaces,
    crd_verdict,
)
from trainingrun.cluster.live_cluster import KubernetesCluster
from trainingrun.controller import handlers
from trainingrun.reconciling.model import Ref


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
    async with watching(bare) as cluster:
        notified = []
        cluster.stores.subscribe(lambda *key: notified.append(key))
        assert (await cluster.observe(namespace, "digits")).kuberay == "missing"
        await asyncio.to_thread(bare.install_crd, rayclusters)
        await asyncio.to_thread(bare.install_crd, old)
        # kopf asks what is served at each change of a CRD. A slow server serves it after the last
        # one; then the operator is started anew, as in the test below.
        old["metadata"].setdefault("annotations", {})["example.com/changed"] = "while it is served"
        await asyncio.to_thread(bare.install_crd, old)
        await eventually(lambda: cluster.watches.kuberay == "too-old")
        notified.clear()
        await asyncio.to_thread(bare.install_crd, rayjobs)
        await eventually(lambda: cluster.watches.kuberay == "ok")
        await eventually(lambda: (namespace, "digits") in notified)
        assert (await cluster.observe(namespace, "digits")).stale == {}


async def test_confined_to_a_namespace_the_operator_is_started_anew_for_a_kuberay_that_came_later(
    bare: ApiServer, monkeypatch
):
    """It may not watch CRDs there, and kopf learns of a kind in no other way."""
    namespace = bare.new_namespace()
    bare.create(a_run(namespace))
    connection = Connection(credentials_of(bare))
    cluster = KubernetesCluster(connection, [namespace], kuberay_check_s=0.3)
    async with kopf_running(WatchOnly(cluster), namespace) as memo:
        await eventually(lambda: cluster.watches.synced)
        assert cluster.watches.kuberay == "missing"
        for text in crds():
            await asyncio.to_thread(bare.install_crd, text)
        with monkeypatch.context() as patched:
            patched.setattr(watch_module, "UNWATCHED_S", 1.0)
            async with asyncio.timeout(60):
                await memo.crashed.wait()
    await connection.close()
    assert "was installed after the operator began" in str(memo.task.exception().exceptions)
    async with watching(bare, namespace) as cluster:
        assert (await cluster.observe(namespace, "digits")).kuberay == "ok"


def not_served(text: str) -> dict:
    found = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for version in found["spec"]["versions"]:
        version["served"] = version["name"] != "v1"
    return found


async def test_a_crd_that_is_there_and_not_served_keeps_no_operator_from_beginning(
    bare: ApiServer,
):
    for text in crds():
        hidden = await asyncio.to_thread(not_served, text)
        await asyncio.to_thread(bare.install_crd, hidden)
    async with watching(bare) as cluster:
        assert cluster.watches.kuberay == "too-old"
        assert "does not know the RayJobs" in cluster.watches.stale_kinds("default")["RayJob"]


async def test_a_crd_that_is_not_served_for_a_moment_hides_nothing_and_one_that_is_removed_does(
    bare: ApiServer, monkeypatch
):
    monkeypatch.setattr(watch_module, "RETRY_S", (0.1, 0.4))
    monkeypatch.setattr(watch_module, "STALE_AFTER_S", 0.5)
    monkeypatch.setattr(handlers, "RETRY_S", (0.1, 0.4))
    rayclusters, rayjobs = crds()
    for crd_text in (rayclusters, rayjobs):
        await asyncio.to_thread(bare.install_crd, crd_text)
    hidden = await asyncio.to_thread(not_served, rayjobs)
    namespace = bare.new_namespace()
    run = bare.create(a_run(namespace))
    a_job = {
        "apiVersion": RAY_API,
        "kind": "RayJob",
        "metadata": owned_by(run, "digits-1", attempt="1"),
        "spec": {"entrypoint": "true"},
    }
    job = bare.create(a_job)
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rayjobs.ray.io"

    def apply_crd(manifest: dict) -> None:
        bare.request("PATCH", f"{path}?fieldManager=tests&force=true", manifest, APPLY)

    proxy = Proxy(urlsplit(bare.url).port)
    await proxy.up()

    def stale(cluster: KubernetesCluster) -> dict:
        return cluster.watches.stale_kinds(namespace)

    async with watching(bare, namespace, port=proxy.port) as cluster:
        await asyncio.to_thread(apply_crd, hidden)
        await proxy.down()
        await proxy.up()
        await eventually(lambda: "does not know the RayJobs" in stale(cluster).get("RayJob", ""))
        seen = await cluster.observe(namespace, "digits")
        assert [found["metadata"]["name"] for found in seen.ray_jobs] == ["digits-1"]
        metadata = job["metadata"]
        with pytest.raises(ClusterError):
            await cluster.delete(Ref(RAY_API, "RayJob", namespace, "digits-1", metadata["uid"]))
        assert len((await cluster.observe(namespace, "digits")).ray_jobs) == 1, "it is still there"

        await asyncio.to_thread(bare.install_crd, rayjobs)
        await eventually(lambda: stale(cluster) == {})
        assert len((await cluster.observe(namespace, "digits")).ray_jobs) == 1

        await asyncio.to_thread(bare.request, "DELETE", path)
        await eventually(lambda: cluster.stores.ray_jobs.of_run((namespace, "digits")) == ())
        await eventually(lambda: cluster.watches.kuberay == "missing")
        assert stale(cluster) == {}
        await asyncio.to_thread(bare.install_crd, rayjobs)
        await asyncio.to_thread(bare.create, a_job)
        await eventually(lambda: len(cluster.stores.ray_jobs.of_run((namespace, "digits"))) == 1)

    async with watching(bare, port=proxy.port) as cluster:
        assert len(cluster.stores.ray_jobs.of_run((namespace, "digits"))) == 1
        await asyncio.to_thread(bare.request, "DELETE", path)
        await eventually(lambda: cluster.stores.ray_jobs.of_run((namespace, "digits")) == ())
        await eventually(lambda: cluster.watches.kuberay == "missing")
        assert stale(cluster) == {}
    await proxy.down()


def test_the_installed_crd_is_checked_by_its_served_v1():
    version = {
        "name": "v1",
        "served": True,
        "schema": {"openAPIV3Schema": {"properties": {"spec": {"properties": {NEEDED_FIELD: {}}}}}},
    }
    assert crd_verdict({"spec": {"versions": [version]}}) == "ok"
    assert crd_verdict({"spec": {"versions": [version | {"served": False}]}}) == "too-old"
    assert crd_verdict({"spec": {"versions": [version | {"name": "v1alpha1"}]}}) == "too-old"
    for stub in ({}, {"properties": {"spec": {"type": "object"}}}):
        of_stub = version | {"schema": {"openAPIV3Schema": {"type": "object"} | stub}}
        assert crd_verdict({"spec": {"versions": [of_stub]}}) == "too-old"


def binding(name: str, *subjects: dict) -> dict:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "kuberay-operator",
        },
        "subjects": list(subjects),
    }


@pytest.fixture
def bind(apiserver: ApiServer):
    """Creates KubeRay's ClusterRoleBinding; it is gone after the test."""
    yield lambda *subjects: apiserver.create(binding("kuberay-operator", *subjects))
    apiserver.request("DELETE", BINDING_PATH)


def account_in(namespace: str) -> dict:
    return {"kind": "ServiceAccount", "name": "kuberay-operator", "namespace": namespace}


async def test_kuberays_namespace_is_found_by_its_cluster_role_binding_and_by_no_label(
    apiserver: ApiServer, bind
):
    """Any user can label a pod like KubeRay's; only an administrator writes such a binding."""
    somebodys = apiserver.new_namespace()
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "looks-like-kuberay",
            "namespace": somebodys,
            "labels": {"app.kubernetes.io/component": "kuberay-operator"},
        },
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }
    apiserver.create(pod)
    connection = Connection(credentials_of(apiserver))
    found = KubeRayNamespaces(connection, retry_s=0.1)
    task = asyncio.create_task(found.run())
    try:
        async with asyncio.timeout(30):
            await found.known()
        assert found.namespaces == ()
        somebody = {"kind": "User", "name": "x", "apiGroup": "rbac.authorization.k8s.io"}
        await asyncio.to_thread(bind, account_in("ray-system"), somebody)
        await eventually(lambda: found.namespaces == ("ray-system",))
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await connection.close()


@pytest.mark.parametrize("lost", ["the role", "the credentials", "the subjects"])
async def test_where_kuberay_was_found_it_stays_while_its_binding_says_nothing(
    apiserver: ApiServer, bind, grant, monkeypatch, lost
):
    """Each change of the namespace rewrites the NetworkPolicy of every running run."""
    answers: list[str] = []
    take_back = grant(CLUSTER_RULES)
    bind(account_in("ray-system"))
    connection = Connection(credentials_of(apiserver), count=lambda _, code: answers.append(code))
    monkeypatch.setattr(kuberay_module, "AGAIN_S", 0.1)
    found = KubeRayNamespaces(connection, retry_s=0.1)
    task = asyncio.create_task(found.run())
    real = Connection._headers
    try:
        await eventually(lambda: found.namespaces == ("ray-system",))
        if lost == "the role":
            await asyncio.to_thread(take_back)
            await eventually(lambda: answers[-1] == "403")
        elif lost == "the credentials":
            refused = {"Authorization": "Bearer wrong"}
            monkeypatch.setattr(Connection, "_headers", lambda *_: {**real(*_), **refused})
            await eventually(lambda: answers[-1] == "401")
        else:
            none = {"subjects": None}
            await asyncio.to_thread(apiserver.request, "PATCH", BINDING_PATH, none, MERGE)
        answers.clear()
        await eventually(lambda: len(answers) > 1)
        assert found.namespaces == ("ray-system",)
        monkeypatch.setattr(kuberay_module, "AGAIN_S", 300.0)
        answers.clear()
        await eventually(lambda: len(answers) > 2, "it is read again soon")

        moved = {"subjects": [account_in("moved")]}
        await asyncio.to_thread(apiserver.request, "PATCH", BINDING_PATH, moved, MERGE)
        monkeypatch.setattr(Connection, "_headers", real)
        grant(CLUSTER_RULES)
        await eventually(lambda: found.namespaces == ("moved",))
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await connection.close()
