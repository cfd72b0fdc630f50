"""A node that does not answer is neither waited for nor used again, and one that is slow is.

Ray's list of nodes is made up here; the connections are real.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.train.v2._internal.execution.worker_group.state import WorkerGroupContext

from trainingrun_runtime.driver.silent_nodes import SilentNodes
from trainingrun_runtime.ray_internals import nodes

WORKER = {"CPU": 2.0}


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two nodes that are slow, one that does not answer, and one that Ray knows is dead.

    Nobody accepts the connections to the slow ones: their kernel takes them.
    """
    names = ("slow", "spare", "silent", "dead")
    with ExitStack() as open_ports:
        servers = {
            name: open_ports.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
            for name in names
        }
        known = [
            {
                "NodeID": name,
                "Alive": name != "dead",
                "NodeManagerAddress": "127.0.0.1",
                "NodeManagerPort": server.getsockname()[1],
                "Resources": {"CPU": 2.0},
            }
            for name, server in servers.items()
        ]
        servers["silent"].close()
        servers["dead"].close()
        monkeypatch.setattr(ray, "nodes", lambda: known)
        draining = SimpleNamespace(state=SimpleNamespace(get_draining_nodes=dict))
        monkeypatch.setattr(ray._private, "state", draining)
        monkeypatch.setattr(nodes, "_silent", {})
        yield


def group(*on: str) -> Any:
    workers = [SimpleNamespace(actor=n, metadata=SimpleNamespace(node_id=n)) for n in on]
    return SimpleNamespace(get_workers=lambda: workers)


def selector(workers: int) -> dict[str, str] | None:
    scaling = SimpleNamespace(_resources_per_worker_not_none=WORKER, use_tpu=False)
    return SilentNodes().on_controller_start_worker_group(
        scaling_config=scaling, num_workers=workers
    )


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr("ray.kill", found.append)
    return found


def test_the_ranks_of_silent_nodes_alone_are_ended_early(killed: list[str]) -> None:
    SilentNodes().before_worker_group_shutdown(group("slow", "silent", "dead"))
    assert killed == ["silent"]


def test_the_next_group_is_placed_elsewhere_where_there_is_room(killed: list[str]) -> None:
    assert selector(2) is None
    SilentNodes().before_worker_group_shutdown(group("slow", "silent"))
    assert selector(2) == {"ray.io/node-id": "!in(silent)"}
    assert selector(3) is None, "Ray waits for a node, as it would without this"
    assert sum(nodes.room_for(WORKER).values()) == 2, "so an elastic group has no worker there"


def test_the_training_function_is_fetched_anew_where_a_node_is_silent(killed: list[str]) -> None:
    put: list[str] = []

    class Stored:
        def __init__(self, function: str) -> None:
            put.append(function)

        def get(self) -> str:
            return put[0]

    first = Stored("function")
    context = WorkerGroupContext("a", first, 2, WORKER)
    SilentNodes().before_worker_group_start(context)
    assert context.train_fn_ref is first
    SilentNodes().before_worker_group_shutdown(group("silent"))
    SilentNodes().before_worker_group_start(context)
    assert context.train_fn_ref is not first
    assert put == ["function", "function"]


def test_it_is_used_again_after_a_while(killed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    SilentNodes().before_worker_group_shutdown(group("silent"))
    later = time.monotonic() + nodes.SILENT_S
    monkeypatch.setattr(f"{nodes.__name__}.time", SimpleNamespace(monotonic=lambda: later))
    assert selector(2) is None
