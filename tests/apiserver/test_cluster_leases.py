"""Node Leases are read while a node is under suspicion, and counted by the API server's clock."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from support.apiserver import ApiError
from support.operators import credentials_of
from trainingrun.cluster import nodes as nodes_module
from trainingrun.cluster.api_client import Connection
from trainingrun.cluster.nodes import Leases, age_of_last_write
from trainingrun.cluster.resources import path_of_manifest
from trainingrun.controller import leadership

SKEW = timedelta(hours=1)
"""How far the kubelets' clocks of these tests are behind."""


def lease(name: str) -> dict:
    renewed = (datetime.now(UTC) - SKEW).isoformat().replace("+00:00", "Z")
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renewed},
    }


@pytest.fixture
async def leases(apiserver):
    connection = Connection(credentials_of(apiserver))
    yield Leases(connection)
    await connection.close()


@pytest.fixture
def renew(apiserver, namespace):
    """Renews the Lease of this test's node as a kubelet does, with a clock of its own."""
    name = f"node-of-{namespace}"
    apiserver.create(lease(name))

    def once() -> str:
        held = apiserver.get("coordination.k8s.io/v1", "Lease", name, "kube-node-lease")
        held["spec"] = lease(name)["spec"]
        apiserver.replace(held)
        return name

    return once


async def test_a_lease_has_an_age_only_after_two_reads_of_the_same_version(leases, renew):
    name = renew()
    assert await leases.ages([name]) == {}, "one read may have met it just before its renewal"
    await asyncio.sleep(nodes_module.BETWEEN_READS_S)
    ages = await leases.ages([name])
    assert 0 <= ages[name] < 30, "the kubelet's clock, an hour behind, counts for nothing"


async def test_a_renewed_lease_is_young_again_and_one_that_is_not_grows_older(leases, renew):
    name = renew()
    async with asyncio.timeout(60):
        while (await leases.ages([name])).get(name, 0.0) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    began = time.monotonic()
    renew()
    held, date = await leases._connection.get_dated(path_of_manifest(lease(name)))
    passed = time.monotonic() - began + 1  # both times are whole seconds
    assert age_of_last_write(held, date) <= passed, "the API server notes it by its own clock"
    await asyncio.sleep(nodes_module.BETWEEN_READS_S)
    assert await leases.ages([name]) == {}
    await asyncio.sleep(nodes_module.BETWEEN_READS_S)
    assert (await leases.ages([name]))[name] < 30


async def test_a_lease_that_was_old_before_anybody_asked_is_old_at_the_second_read(
    leases, renew, monkeypatch
):
    name = renew()
    real = leases._connection.get_dated

    async def later(path):
        found, date = await real(path)
        return found, date + timedelta(seconds=100)

    monkeypatch.setattr(leases._connection, "get_dated", later)
    await leases.ages([name])
    await asyncio.sleep(nodes_module.BETWEEN_READS_S)
    assert (await leases.ages([name]))[name] >= 99


async def test_a_lease_that_cannot_be_read_is_unknown(apiserver, leases):
    assert await leases.ages(["no-such-node"]) == {}
    nobody_listens = Connection(credentials_of(apiserver, port=1))
    assert await Leases(nobody_listens).ages(["any"]) == {}
    await nobody_listens.close()


async def test_a_leader_that_renews_at_a_whole_second_is_not_refused(
    apiserver, namespace, monkeypatch
):
    """The API server takes no time without a fraction; clients that parse it write it so."""

    class WholeSecond(datetime):
        @classmethod
        def now(cls, tz=None) -> datetime:
            return super().now(tz).replace(microsecond=0)

    monkeypatch.setattr(leadership, "datetime", WholeSecond)
    connection = Connection(credentials_of(apiserver), timeout_s=leadership.REQUEST_S)
    candidate = leadership.Leadership(connection, namespace, "whole-second", "me")
    apiserver.create(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "whole-second", "namespace": namespace},
            "spec": leadership.given_back(),
        }
    )
    await candidate._try()
    held = apiserver.get("coordination.k8s.io/v1", "Lease", "whole-second", namespace)["spec"]
    assert candidate.leads
    assert held["renewTime"].endswith(".000000Z")
    await candidate.close()


def test_the_api_server_refuses_a_whole_second_without_its_fraction(apiserver, namespace):
    written = lease("no-fraction")
    written["metadata"]["namespace"] = namespace
    written["spec"]["renewTime"] = "2026-01-01T00:00:00Z"
    with pytest.raises(ApiError, match="000000"):
        apiserver.create(written)
