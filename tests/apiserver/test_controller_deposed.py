"""A leader whose right to write ends while its term still goes on, as one that was stopped for a
while and has not noticed it: it writes nothing and tells nobody anything.
"""

import asyncio
import base64
import dataclasses
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from support.apiserver import MERGE, ApiServer
from support.operators import (
    PlaysHead,
    PlaysKubeRay,
    a_run,
    credentials_of,
    document,
    eventually,
    running,
    settings_for,
    settled,
)
from support.receivers import Receiver
from trainingrun.api.status import RunStatus
from trainingrun.cluster.live_cluster import KubernetesCluster
from trainingrun.controller import notifier
from trainingrun.controller.leadership import Leadership
from trainingrun.controller.notifier import Notifier
from trainingrun.controller.operator import Operator
from trainingrun.controller.progress_polling import Poller

SECRET = "trainingrun-notifications"


def is_deposed(operator: Operator, deposed: bool) -> None:
    """Whether the right to write has ended, or does not end."""
    operator.leadership._write_until = 0.0 if deposed else math.inf


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver().listening() as listening:
        yield listening


@pytest.fixture
async def leader(
    apiserver: ApiServer,
    namespace: str,
    head: PlaysHead,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Operator]:
    """It leads; nothing renews its Lease and nothing ends its term: the test does."""

    async def held(_: Leadership) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Leadership, "_keep", held)
    settings = settings_for(namespace)
    reconcile = dataclasses.replace(settings.reconcile, notification_hosts=(receiver.allowed,))
    settings = dataclasses.replace(settings, reconcile=reconcile)
    async with running(Operator(settings, credentials_of(apiserver), head.target)) as operator:
        await eventually(lambda: operator.leadership.leads)
        is_deposed(operator, False)
        yield operator


def deposed_once(
    written: Callable[[RunStatus], bool], operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right to write ends once, as soon as such a status is written: what follows is left."""
    real, due = KubernetesCluster.write_status, [True]

    async def write_status(self: KubernetesCluster, run: Any, status: RunStatus, at: Any) -> None:
        await real(self, run, status, at)
        if due and written(status):
            due.clear()
            is_deposed(operator, True)

    monkeypatch.setattr(KubernetesCluster, "write_status", write_status)


def versions(server: ApiServer, namespace: str) -> dict[str, str]:
    """The resource version of everything in a namespace."""
    groups = server.request("GET", "/apis")["groups"]
    served = [f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups]
    found = {}
    for root in ("/api/v1", *served):
        for kind in server.request("GET", root)["resources"]:
            if kind["namespaced"] and "list" in kind["verbs"]:
                path = f"{root}/namespaces/{namespace}/{kind['name']}"
                for item in server.request("GET", path)["items"]:
                    metadata = item["metadata"]
                    found[f"{path}/{metadata['name']}"] = metadata["resourceVersion"]
    return found


def not_sent(operator: Operator) -> float:
    """Reconciles that were given up since this process may not write."""
    name, labels = "trainingrun_reconcile_errors_total", {"reason": "NotLeading"}
    return operator.metrics.registry.get_sample_value(name, labels) or 0.0


async def test_a_leader_that_is_deposed_changes_nothing_until_it_leads_again(
    apiserver: ApiServer, namespace: str, leader: Operator, status: Any
) -> None:
    apiserver.create(a_run(namespace, "before"))
    await eventually(lambda: status("before").get("attempt") == 1)
    await settled(leader, (namespace, "before"))
    is_deposed(leader, True)
    apiserver.create(a_run(namespace, "after"))
    before = versions(apiserver, namespace)
    assert len(before) > 4, "the runs and what the first one needs"
    await eventually(lambda: not_sent(leader) >= 3 or versions(apiserver, namespace) != before)
    assert versions(apiserver, namespace) == before
    is_deposed(leader, False)
    await eventually(lambda: status("after").get("attempt") == 1)
    assert versions(apiserver, namespace) != before


async def test_a_leader_that_is_deposed_posts_no_suspend(
    apiserver: ApiServer,
    namespace: str,
    kuberay: PlaysKubeRay,
    head: PlaysHead,
    leader: Operator,
    status: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its right ends between the status that has the request and the request."""
    ended, real = [], Poller._suspend

    async def suspend(self: Poller, *asked: Any) -> None:
        await real(self, *asked)
        ended.append(head.suspends)

    monkeypatch.setattr(Poller, "_suspend", suspend)
    run = apiserver.create(a_run(namespace))
    await eventually(lambda: status().get("attempt") == 1)
    kuberay.starts(run)
    head.document = document(step=3)
    await eventually(lambda: status().get("progress", {}).get("step") == 3)
    deposed_once(lambda status: "suspendAsked" in status.to_dict()["seen"], leader, monkeypatch)
    apiserver.request("PATCH", apiserver.path(run), {"spec": {"suspend": True}}, MERGE)
    await eventually(lambda: ended)
    assert ended[0] == 0
    is_deposed(leader, False)
    await eventually(lambda: head.suspends > 0)


async def test_a_leader_that_is_deposed_sends_no_notification(
    apiserver: ApiServer,
    namespace: str,
    leader: Operator,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its right ends between the status that has the notice and the notice."""
    monkeypatch.setattr(notifier, "RETRY_S", (0.1, 0.2))
    tries, real = [], Notifier._try

    async def try_to_send(self: Notifier, lane: Any) -> Any:
        tries.append(await real(self, lane))
        return tries[-1]

    monkeypatch.setattr(Notifier, "_try", try_to_send)
    url = base64.b64encode(receiver.url.encode()).decode()
    metadata = {"name": SECRET, "namespace": namespace}
    apiserver.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"url": url}}
    )
    webhook = {"secretRef": {"name": SECRET, "key": "url"}}
    deposed_once(lambda status: status.completion_time is not None, leader, monkeypatch)
    notify = [{"events": ["Failed"], "webhook": webhook, "format": "CloudEvents"}]
    apiserver.create(a_run(namespace, notify=notify, activeDeadlineSeconds=1))
    await eventually(lambda: tries)
    assert (tries[0], receiver.received) == (
        ("failed", "this operator does not lead any more"),
        [],
    )
    is_deposed(leader, False)
    await eventually(lambda: receiver.received)
