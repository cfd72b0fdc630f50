"""Objects that vanish while a watch has expired: of these kopf tells nothing."""

import asyncio
import json
import urllib.request
from urllib.parse import urlsplit

import pytest

from support.apiserver import ApiServer, running_apiserver
from support.operators import Proxy, a_ray_job, a_run, eventually, watching
from trainingrun.cluster.api_client import Connection
from trainingrun.controller import handlers


def compact(server: ApiServer) -> None:
    """Makes etcd forget every version but the last, so that older watches get 410 Gone."""

    def call(path: str, body: dict) -> dict:
        request = urllib.request.Request(server.etcd + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    found = call("/v3/kv/range", {"key": "AA==", "limit": "1"})
    call("/v3/kv/compaction", {"revision": found["header"]["revision"], "physical": True})


@pytest.fixture
def uncached(apiserver):
    """An API server that asks etcd for what was, and remembers nothing that etcd has forgotten.

    Asks for `apiserver` so that it skips, or not, alike.
    """
    with running_apiserver(watch_cache="false") as server:
        server.install_crds()
        yield server


async def test_what_vanished_while_a_watch_had_expired_is_taken_out(
    uncached: ApiServer, monkeypatch
):
    monkeypatch.setattr(handlers, "RETRY_S", (0.1, 0.4))
    namespace = uncached.new_namespace()
    run = uncached.create(a_run(namespace))
    others = uncached.create(a_run(namespace, "other"))
    jobs = [uncached.create(a_ray_job(run, f"digits-{number}")) for number in (1, 2)]
    kept = uncached.create(a_ray_job(others, "other-1"))
    listed: list[str] = []
    real = Connection.list_versions

    async def list_versions(self, path, *args):
        listed.append(path)
        return await real(self, path, *args)

    proxy = Proxy(urlsplit(uncached.url).port)
    await proxy.up()
    async with watching(uncached, namespace, port=proxy.port) as cluster:
        assert len(cluster.stores.ray_jobs.of_run((namespace, "digits"))) == 2
        monkeypatch.setattr(Connection, "list_versions", list_versions)
        await proxy.down()
        for job in jobs:
            uncached.request("DELETE", uncached.path(job))
        for gone in (run, others):  # of this kind nothing is left, so kopf is notified of no object
            uncached.request("DELETE", uncached.path(gone))
        await asyncio.to_thread(compact, uncached)
        await proxy.up()
        await eventually(lambda: cluster.stores.run_keys() == [])
        await eventually(lambda: cluster.stores.ray_jobs.of_run((namespace, "digits")) == ())
        assert [
            job["metadata"]["uid"] for job in cluster.stores.ray_jobs.of_run((namespace, "other"))
        ] == [kept["metadata"]["uid"]]
        assert uncached.path(run, "") in listed, "no watch had expired"
    await proxy.down()
