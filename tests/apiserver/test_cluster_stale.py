"""Unknown is not absent: what the API server refuses to tell is kept, and marked as stale."""

import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from support.apiserver import ApiServer
from support.operators import (
    Proxy,
    a_ray_job,
    a_run,
    eventually,
    owned_by,
    watches_are_open,
    watching,
)
from support.permissions import CLUSTER_RULES, RUN_RULES
from trainingrun.cluster import watches as watch_module
from trainingrun.cluster.api_client import Connection
from trainingrun.cluster.live_cluster import KubernetesCluster
from trainingrun.controller import handlers
from trainingrun.reconciling.model import Observed

RUN_KINDS = ["TrainingRun", "RayJob", "RayCluster", "Pod"]


class Watched:
    """A cluster that is watched by way of a proxy, and the runs that were notified of news."""

    def __init__(self, cluster: KubernetesCluster, proxy: Proxy, namespace: str):
        self.cluster, self.proxy, self.namespace = cluster, proxy, namespace
        self.notified: list[tuple[str, str]] = []
        cluster.stores.subscribe(lambda *key: self.notified.append(key))

    async def observed(self) -> Observed:
        return await self.cluster.observe(self.namespace, "digits")

    def stale(self) -> dict[str, str]:
        return self.cluster.watches.stale_kinds(self.namespace)

    async def cut(self) -> None:
        """Every watch is opened anew: an open one is not asked again whether it is allowed."""
        await self.proxy.down()
        await self.proxy.up()


@contextlib.asynccontextmanager
async def watching_by_proxy(server: ApiServer, *namespaces: str) -> AsyncIterator[Watched]:
    proxy = Proxy(urlsplit(server.url).port)
    await proxy.up()
    try:
        async with watching(server, *namespaces, port=proxy.port) as cluster:
            yield Watched(cluster, proxy, namespaces[0])
    finally:
        with contextlib.suppress(OSError):
            await proxy.down()


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(watch_module, "RETRY_S", (0.1, 0.4))
    monkeypatch.setattr(handlers, "RETRY_S", (0.1, 0.4))


async def test_roles_that_are_taken_away_hide_nothing_that_is_known(apiserver, namespace, grant):
    revoke = grant(RUN_RULES, namespace)
    run = apiserver.create(a_run(namespace))
    apiserver.create(a_ray_job(run))
    async with watching_by_proxy(apiserver, namespace) as watched:
        await watches_are_open(watched.cluster)
        assert watched.stale() == {}
        revoke()
        watched.notified.clear()
        await watched.cut()
        await eventually(lambda: sorted(watched.stale()) == sorted(RUN_KINDS))
        seen = await watched.observed()
        assert [job["metadata"]["name"] for job in seen.ray_jobs] == ["digits-1"]
        assert "does not let the operator watch the RayJobs" in seen.stale["RayJob"]
        assert "restore the roles" in seen.stale["RayJob"]
        await eventually(lambda: (namespace, "digits") in watched.notified)
        assert watched.cluster.watches.count_stale()["RayJob"] == 1

        apiserver.request("DELETE", apiserver.path(a_ray_job(run)))
        watched.notified.clear()
        grant(RUN_RULES, namespace)
        await eventually(lambda: watched.stale() == {})
        await eventually(lambda: not watched.cluster.stores.ray_jobs.of_run((namespace, "digits")))
        assert (await watched.observed()).stale == {}
        await eventually(lambda: (namespace, "digits") in watched.notified)


async def test_credentials_that_are_no_longer_taken_hide_nothing(apiserver, namespace, monkeypatch):
    run = apiserver.create(a_run(namespace))
    apiserver.create(a_ray_job(run))
    async with watching_by_proxy(apiserver, namespace) as watched:
        await watches_are_open(watched.cluster)
        real = Connection._headers

        def refused(self, content_type):
            return {**real(self, content_type), "Authorization": "Bearer wrong"}

        with monkeypatch.context() as patched:
            patched.setattr(Connection, "_headers", refused)
            await watched.cut()
            await eventually(lambda: set(watched.stale()) == {*RUN_KINDS, "Node"})
            seen = await watched.observed()
            assert "401" in seen.stale["Pod"]
            assert len(seen.ray_jobs) == 1
        await eventually(lambda: watched.stale() == {})


async def test_what_was_forbidden_from_the_start_is_unknown_too(apiserver, namespace, grant):
    rules = [rule for rule in RUN_RULES if rule["apiGroups"] == ["trainingrun.dev"]]
    grant(rules, namespace)
    run = apiserver.create(a_run(namespace))
    apiserver.create(a_ray_job(run))
    async with watching_by_proxy(apiserver, namespace) as watched:
        seen = await watched.observed()
        assert seen.ray_jobs == ()
        assert sorted(seen.stale) == ["Pod", "RayCluster", "RayJob"]
        grant(RUN_RULES, namespace)
        await eventually(lambda: watched.stale() == {})
        assert len((await watched.observed()).ray_jobs) == 1


async def test_an_operator_confined_to_namespaces_knows_no_nodes_and_is_not_stale(
    apiserver, namespace, grant
):
    grant(RUN_RULES, namespace)
    run = apiserver.create(a_run(namespace))
    name = f"node-of-{namespace}"
    apiserver.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": owned_by(run, "digits-1-worker", attempt="1", role="worker"),
        "spec": {"containers": [{"name": "ray-worker", "image": "none"}], "nodeName": name},
    }
    apiserver.create(pod)
    async with watching_by_proxy(apiserver, namespace) as watched:
        seen = await watched.observed()
        assert (dict(seen.nodes), dict(seen.stale)) == ({}, {})
        assert watched.cluster.watches.count_stale()["Node"] == 0, (
            "nobody is to be alarmed for ever"
        )
        assert await watched.cluster.lease_ages([name]) == {}


async def test_nodes_that_may_no_longer_be_watched_are_unknown(apiserver, namespace, grant):
    """Not lost: a node that was unready when it was last seen may be ready now."""
    grant(RUN_RULES, namespace)
    revoke = grant(CLUSTER_RULES)
    async with watching_by_proxy(apiserver, namespace) as watched:
        await watches_are_open(watched.cluster)
        nodes = watched.cluster._nodes
        name = f"other-node-of-{namespace}"
        apiserver.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        await eventually(lambda: nodes.states([name]))
        revoke()
        await watched.cut()
        await eventually(lambda: nodes.states([name]) == {})
        assert watched.cluster.watches.count_stale()["Node"] == 1
        assert list(watched.stale()) == ["Node"], "else what is held would be counted as free"


async def test_an_api_server_that_is_away_makes_everything_stale_until_its_news_are_in(
    apiserver, namespace, monkeypatch
):
    monkeypatch.setattr(watch_module, "STALE_AFTER_S", 0.5)
    run = apiserver.create(a_run(namespace))
    apiserver.create(a_ray_job(run))
    async with watching_by_proxy(apiserver, namespace) as watched:
        await watches_are_open(watched.cluster)
        watched.notified.clear()
        await watched.proxy.down()
        await eventually(lambda: set(watched.stale()) == {*RUN_KINDS, "Node"})
        await eventually(lambda: (namespace, "digits") in watched.notified)
        assert len((await watched.observed()).ray_jobs) == 1
        apiserver.request("DELETE", apiserver.path(a_ray_job(run)))
        await watched.proxy.up()
        await eventually(lambda: "RayJob" not in watched.stale())
        assert watched.cluster.stores.ray_jobs.of_run((namespace, "digits")) == ()
        await eventually(lambda: watched.stale() == {})
