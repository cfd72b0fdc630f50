"""`trainingrun ui` against a real API server: many runs, and a user with few rights."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from benchmarks import scale_objects
from benchmarks.scale import BATCH, has_caught_up, put, stored
from support import closing_lines
from support.apiserver import ApiServer, running_apiserver
from support.binaries import skipping_unavailable
from support.operators import a_run
from support.ui_server import served
from trainingrun.client import kube

READ = {"apiGroups": ["trainingrun.dev"], "resources": ["trainingruns"], "verbs": ["get", "list"]}
LOCATION = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
MANY = 5000
CPU_S = 8.0
"""Of this process for the first page: it takes 3.5 s, in which whoever has opened it still waits
for it, and no reading of another process makes it more. A request for each run would take minutes.
"""
PATIENCE_S = 120.0
"""For what else runs on this machine."""


def a_training_run(number: int) -> dict[str, Any]:
    """As large as a run of 16 ranks is, or ended."""
    namespace, name = f"team-{number % 20}", f"run-{number:04}"
    if number % 2:
        return scale_objects.ended_run(namespace, name)
    run = scale_objects.running_run(namespace, name)
    ranks = [
        {
            "rank": rank,
            "stepSeconds": 0.4,
            "usedBytes": 2**34,
            "node": f"n-{rank}",
            "pod": f"{name}-{rank}",
        }
        for rank in range(16)
    ]
    waits = {"type": "Waiting", "status": "True", "reason": "Hang", "message": "no step for 300 s"}
    run["status"] |= {
        "phase": "Running",
        "progress": {"step": number, "totalSteps": MANY, "percent": 3, "ranks": ranks},
        "conditions": [waits] if number == 4998 else [],
    }
    return run


async def fill(server: ApiServer) -> None:
    """Straight into etcd, the status too: that the API server takes runs is tested elsewhere."""
    runs = [stored(a_training_run(number)) for number in range(MANY)]
    async with aiohttp.ClientSession(f"{server.etcd}/v3/kv/") as session:
        for begin in range(0, MANY, BATCH):
            await put(session, runs[begin : begin + BATCH])


@pytest.fixture(scope="module")
def large() -> Iterator[ApiServer]:
    """An API server with many runs, which other tests do not see."""
    with skipping_unavailable(), running_apiserver() as server:
        server.install_crds()
        for number in range(20):
            metadata = {"name": f"team-{number}"}
            server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        asyncio.run(fill(server))
        deadline = time.monotonic() + PATIENCE_S
        while not has_caught_up(server):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield server


def test_the_first_page_of_five_thousand_runs_is_there_in_time(
    large: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOCATION, str(large.kubeconfig))
    with served(everywhere=True) as asking:
        begin, cpu = time.monotonic(), time.process_time()
        page = asking.page()
        while "5,000 runs, read" not in page and time.monotonic() - begin < PATIENCE_S:
            assert "it is waited for" in page
            page = asking.page()
        first_s, cpu_s = time.monotonic() - begin, time.process_time() - cpu
        closing_lines.LINES.append(
            f"ui: the first page of {MANY} runs took {first_s:.1f} s, and {cpu_s:.1f} s of a core"
        )
        assert "5,000 runs, read" in page
        assert "Running 2,500" in page
        assert "Succeeded 2,500" in page
        assert page.index("run-4998") < page.index("run-0000"), "what hangs comes first"
        assert "Page 1 of 50" in page
        cpu = time.process_time()
        assert "250 runs" in asking.page("/?namespace=team-7&state=Succeeded")
        assert time.process_time() - cpu < 0.5, "nothing is read anew"
    assert cpu_s < CPU_S


def test_runs_are_asked_for_in_parts(large: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOCATION, str(large.kubeconfig))
    monkeypatch.setattr(kube, "_PART", 60)
    found = kube.Kube(None, "team-3").runs(everywhere=False)
    assert [run["metadata"]["name"] for run in found] == [f"run-{n:04}" for n in range(3, MANY, 20)]


@pytest.fixture
def of_others(apiserver: ApiServer, namespace: str) -> str:
    """Another namespace, with a run."""
    other = apiserver.new_namespace()
    for where, name in ((namespace, "mine"), (other, "theirs")):
        apiserver.create(a_run(where, name))
    return other


def test_with_rights_in_one_namespace_that_one_is_shown_and_a_sentence_for_the_rest(
    as_user: Any, namespace: str, of_others: str
) -> None:
    as_user([READ])
    with served(everywhere=True, namespace=namespace) as asking:
        page = asking.page()
        assert 'cannot list resource "trainingruns"' in page
        assert "So the runs of one namespace are shown" in page
        assert f"1 run in namespace {namespace}" in page
        assert "mine" in page
        assert "theirs" not in page
        assert "cannot list" in asking.page(f"/?namespace={of_others}")
        assert "theirs" not in asking.page(f"/?namespace={of_others}")
        own, other = (
            f"/runs/{where}/{name}" for where, name in ((namespace, "mine"), (of_others, "theirs"))
        )
        assert "mine Pending" in asking.page(own) or "mine Unknown" in asking.page(own)
        assert 'cannot get resource "trainingruns"' in asking.page(other)
        assert 'cannot get resource "trainingruns"' in asking.page(f"{other}/logs")


def test_a_run_that_is_deleted_is_a_sentence_and_the_others_stay(
    apiserver: ApiServer,
    namespace: str,
    as_user: Any,
    of_others: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_user([READ])
    monkeypatch.setattr("trainingrun.cli.ui.pages._FRESH_S", 0.0)
    monkeypatch.setattr("trainingrun.cli.ui.shared._SHARE", 0.0)
    apiserver.create(a_run(namespace, "stays"))
    with served(namespace=namespace) as asking:
        assert "2 runs" in asking.page()
        apiserver.request("DELETE", apiserver.path(a_run(namespace, "mine")))
        assert "TrainingRun mine in namespace" in asking.page(f"/runs/{namespace}/mine")
        assert "1 run in" in asking.page()
