"""A standby whose view is late takes over, and what is healthy continues."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.apiserver import ApiServer
from support.operators import (
    PATIENCE_S,
    RAY_API,
    Proxy,
    a_ray_job,
    a_run,
    credentials_of,
    document,
    eventually,
    owned_by,
    running,
    settled,
    watching,
)
from trainingrun.cluster.api_client import Connection
from trainingrun.controller.operator import Operator

HALF_OPEN_S = 10.0
"""Within which a watch that is open and says nothing is noticed."""


class LateNews:
    """Holds the events of one kind back, as an open watch that lags does."""

    def __init__(self, operator: Operator, kind: str):
        self._real = operator.cluster.handle
        self._kind, self._held = kind, list[Any]()
        operator.cluster.handle = self._handle  # type: ignore[method-assign]

    def _handle(self, event: Any) -> None:
        if event["object"]["kind"] == self._kind:
            self._held.append(event)
        else:
            self._real(event)

    def arrive(self) -> None:
        """What was held back comes in, in order."""
        assert self._held, f"no event of a {self._kind} came"
        for event in self._held:
            self._real(event)
        self._held.clear()


def made(server: ApiServer, namespace: str) -> set[tuple[str, str, bool]]:
    """Name and UID of every RayJob and pod, and whether it is being deleted."""
    return {
        (item["metadata"]["name"], item["metadata"]["uid"], "deletionTimestamp" in item["metadata"])
        for path in (f"/apis/{RAY_API}/namespaces/{namespace}/rayjobs", _pods(namespace))
        for item in server.request("GET", path)["items"]
    }


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


async def sees_all(operator: Operator, server: ApiServer, namespace: str) -> None:
    """Waits until the operator's cache has the pods that there are, and no others."""

    def same() -> bool:
        there = {
            item["metadata"]["uid"] for item in server.request("GET", _pods(namespace))["items"]
        }
        seen = operator.cluster.stores.pods.of_run((namespace, "digits"))
        return there == {pod["metadata"]["uid"] for pod in seen}

    await eventually(same)


@contextlib.asynccontextmanager
async def standing_by(operator: Operator) -> AsyncIterator[Operator]:
    async with running(operator):
        await operator.cluster.wait_synced()
        yield operator


@pytest.mark.parametrize("kind", ["RayJob", "RayCluster", "Pod"])
async def test_a_standby_that_lags_ends_no_attempt_when_it_begins_to_lead(
    apiserver, namespace, new_operator, kuberay, head, status, kind
):
    key = (namespace, "digits")
    first, second = await new_operator(), await new_operator()
    async with contextlib.AsyncExitStack() as later:
        async with running(first):
            await eventually(lambda: first.leadership.leads)
            await later.enter_async_context(standing_by(second))
            news = LateNews(second, kind)
            run = apiserver.create(a_run(namespace, failures={"maxPreemptions": 0}))
            await eventually(lambda: status().get("attempt") == 1)
            kuberay.starts(run)
            head.document = document(step=5, totalSteps=100, resumedFromStep=0)
            await eventually(lambda: status().get("phase") == "Running")
            await settled(first, key)
            before = made(apiserver, namespace)
        await eventually(lambda: second.leadership.leads)
        await settled(second, key)
        assert status()["attempts"][0]["outcome"] == "Running"
        assert not any(status().get("disruptions", {}).values())
        assert made(apiserver, namespace) == before
        news.arrive()
        head.document |= {"step": 6}
        await eventually(lambda: status()["progress"]["step"] == 6)
        assert (status()["attempt"], status()["phase"]) == (1, "Running")


async def test_a_ray_job_that_is_really_gone_ends_its_attempt(
    apiserver, namespace, new_operator, kuberay, head, status
):
    operator = await new_operator()
    async with running(operator):
        run = apiserver.create(a_run(namespace))
        await eventually(lambda: status().get("attempt") == 1)
        kuberay.starts(run)
        head.document = document(step=5, totalSteps=100, resumedFromStep=0)
        await eventually(lambda: status().get("phase") == "Running")
        apiserver.request("DELETE", apiserver.path(kuberay.job("digits-1")))
        await eventually(lambda: status()["attempts"][0]["outcome"] == "Lost")


async def test_objects_that_only_carry_the_run_s_labels_end_nothing(
    apiserver, namespace, new_operator, kuberay, head, status
):
    operator = await new_operator()
    async with running(operator):
        run = apiserver.create(a_run(namespace, failures={"maxPreemptions": 0}))
        await eventually(lambda: status().get("attempt") == 1)
        kuberay.starts(run)
        head.document = document(step=5, totalSteps=100, resumedFromStep=0)
        await eventually(lambda: status().get("phase") == "Running")
        await settled(operator, (namespace, "digits"))
        before = made(apiserver, namespace)
        for number, role in (("1", "head"), ("2", "worker"), ("2", "head")):
            metadata = owned_by(run, f"copy-{number}-{role}", attempt=number, role=role)
            spec = {"containers": [{"name": f"ray-{role}", "image": "none"}]}
            copy = apiserver.create(
                {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            )
            copy["status"] = {"phase": "Failed"}
            apiserver.replace(copy, "status")
        apiserver.create(a_ray_job(run, "digits-2"))
        await sees_all(operator, apiserver, namespace)
        await settled(operator, (namespace, "digits"))
        assert before < made(apiserver, namespace), "nothing is deleted"
        for name in ("copy-1-head", "copy-2-head"):
            apiserver.request("DELETE", f"{_pods(namespace)}/{name}")
        await sees_all(operator, apiserver, namespace)
        await settled(operator, (namespace, "digits"))
        assert (status()["attempt"], status()["phase"]) == (1, "Running")
        assert not any(status().get("disruptions", {}).values())


async def test_a_watch_that_is_open_and_says_nothing_is_noticed_within_ten_seconds(
    apiserver, namespace
):
    run = apiserver.create(a_run(namespace))
    proxy = Proxy(urlsplit(apiserver.url).port)
    await proxy.up()
    async with watching(apiserver, namespace, port=proxy.port) as cluster:
        proxy.silence()
        apiserver.create(a_ray_job(run))
        began = time.monotonic()
        await eventually(lambda: cluster.stores.ray_jobs.of_run((namespace, "digits")))
        took = time.monotonic() - began
    await proxy.down()
    assert took <= HALF_OPEN_S + 6, f"{took:.1f} s"  # and to be opened anew


async def test_a_watch_is_never_opened_on_a_connection_that_may_have_gone_silent(apiserver):
    proxy = Proxy(urlsplit(apiserver.url).port)
    await proxy.up()
    connection = Connection(credentials_of(apiserver, proxy.port))
    session = connection.session_for_watches(lambda request, send: send(request))
    try:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(2):
                async with session.get(f"{connection.server}/version") as answer:
                    assert (await answer.json())["gitVersion"]
                proxy.silence()
    finally:
        await session.close()
        await connection.close()
        await proxy.down()
