"""Ray's nodes.

Read for ray 2.58-2.60: `ray/scripts/scripts.py` (`ray drain-node`). Imports no Ray Train, which
takes a second.
"""

import socket
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray

ANSWER_S = 1.0
"""Seconds in which a raylet takes a connection: the kernel does, also of a busy one."""
SILENT_S = 30.0
"""Seconds for which a node counts as silent; Ray knows sooner that it is dead."""
_AT_ONCE = 64

_silent: dict[str, float] = {}
"""When nodes were found silent, in seconds of a monotonic clock; of Ray's controller's process."""


def drain_own_node(message: str, deadline: float) -> None:
    """Drain this node until `deadline` (Unix seconds): Ray places nothing new on it.

    The same call as `ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION`.
    """
    from ray.core.generated import autoscaler_pb2

    context = ray.get_runtime_context()
    client = ray._raylet.GcsClient(address=context.gcs_address)
    client.drain_node(
        context.get_node_id(),
        autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
        message,
        int(max(deadline, time.time() + 1) * 1000),
    )


def dead_nodes() -> set[str]:
    """Ids of the Ray nodes that Ray counts as dead."""
    return {node["NodeID"] for node in ray.nodes() if not node["Alive"]}


def find_silent(among: Collection[str]) -> set[str]:
    """Those of these nodes that Ray counts as alive and whose raylet takes no connection."""
    living = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] in among]
    if not living:
        return set()
    with ThreadPoolExecutor(min(len(living), _AT_ONCE)) as pool:
        answers = list(pool.map(_answers, living))
    found = {node["NodeID"] for node, answer in zip(living, answers, strict=True) if not answer}
    _silent.update(dict.fromkeys(found, time.monotonic()))
    return found


def silent() -> set[str]:
    """Nodes that `find_silent` has found not long ago."""
    return {node for node, at in _silent.items() if time.monotonic() - at < SILENT_S}


def _answers(node: Mapping[str, Any]) -> bool:
    try:
        place = (node["NodeManagerAddress"], int(node["NodeManagerPort"]))
        socket.create_connection(place, ANSWER_S).close()
    except OSError:
        return False
    return True


def address_of(node_id: str) -> str:
    """Host and port of a node's raylet."""
    return next(_address(node) for node in ray.nodes() if node["NodeID"] == node_id)


def addresses_with(resource: str) -> dict[str, int]:
    """The amount of a custom resource by host and port of the raylet, of living nodes with it."""
    return {
        _address(node): int(node["Resources"][resource])
        for node in ray.nodes()
        if node["Alive"] and resource in node["Resources"]
    }


def usable_with(resource: str) -> frozenset[str]:
    """Ids of the living nodes with some of a custom resource that are not being drained."""
    draining = ray._private.state.state.get_draining_nodes()
    return frozenset(
        node["NodeID"]
        for node in ray.nodes()
        if node["Alive"] and resource in node["Resources"] and node["NodeID"] not in draining
    )


def room_for(each: Mapping[str, float]) -> dict[str, int]:
    """How many workers the living nodes have room for, in use or not, by the raylet's address.

    Nodes without room, those that are being drained and those that are silent are left out.

    Args:
        each: resources of a worker.
    """
    without = {*ray._private.state.state.get_draining_nodes(), *silent()}
    found = {
        _address(node): min(
            # Of 1 there are ten times 0.1, though not to floating-point numbers.
            (int(node["Resources"].get(name, 0) / of + 1e-6) for name, of in each.items() if of),
            default=0,
        )
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] not in without
    }
    return {address: room for address, room in found.items() if room}


def total_on_own_node(resource: str) -> int:
    """How much of a custom resource this node has, in use or not."""
    own = ray.get_runtime_context().get_node_id()
    return next(
        int(node["Resources"].get(resource, 0)) for node in ray.nodes() if node["NodeID"] == own
    )


def _address(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
