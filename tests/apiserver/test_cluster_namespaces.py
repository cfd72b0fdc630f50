"""Many watched namespaces: watches never use up the connections of requests."""

import asyncio

from support.operators import a_run, eventually, owned_by, watching
from trainingrun.cluster import api_client as connection_module

NAMESPACES = 60
"""Four watches each: more than the 200 connections that all requests once shared."""


async def test_an_operator_of_60_namespaces_with_4_connections_for_requests_works(
    apiserver, monkeypatch
):
    monkeypatch.setattr(connection_module, "REQUESTS", 4)
    names = [apiserver.new_namespace() for _ in range(NAMESPACES)]
    async with watching(apiserver, *names) as cluster:
        assert all(watch.connected_since is not None for watch in cluster.watches.all())
        for namespace in (names[0], names[-1]):
            run = apiserver.create(a_run(namespace))
            job = {
                "apiVersion": "ray.io/v1",
                "kind": "RayJob",
                "metadata": owned_by(run, "digits-1", attempt="1"),
                "spec": {"entrypoint": "true"},
            }
            await asyncio.wait_for(cluster.apply(job), 20)
            key = (namespace, "digits")
            await eventually(lambda key=key: key in cluster.stores.run_keys())
            seen = await cluster.observe(*key)
            assert (len(seen.ray_jobs), dict(seen.stale)) == (1, {})
