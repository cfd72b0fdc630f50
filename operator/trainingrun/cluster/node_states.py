"""Nodes as the control plane shows them."""

import time
from collections.abc import Callable, Iterable

from ..reconciling.model import NodeState
from ..rendering.scheduling import HOSTNAME
from .object_store import Object
from .watch_state import Watch

UNKNOWN_NODE_S = 5.0
"""A node that pods name but that is not listed counts as gone after this: the event of a new node
may come later than those of its first pod."""
REMEMBERED_HOSTNAMES = 10_000
"""Of nodes that are gone, whose hostname differs from their name."""


class Nodes:
    """Answers from the watch of nodes. While that is stale, every node is unknown."""

    def __init__(self, watch: Watch, monotonic: Callable[[], float] = time.monotonic):
        """Reads the watch's store at each call."""
        self._watch, self._monotonic = watch, monotonic
        self._missing_since: dict[str, float] = {}
        self._read: dict[str, tuple[Object, NodeState]] = {}
        self._hostnames: dict[str, str] = {}

    def states(self, names: Iterable[str]) -> dict[str, NodeState]:
        """What is known of these nodes; one of which nothing is known is left out."""
        if self._watch.state != "synced" or self._watch.stale:
            return {}
        return {name: state for name in names if (state := self._state(name)) is not None}

    def hostname(self, name: str) -> str:
        """Its kubernetes.io/hostname, which on some clouds is not its name; also of one that was
        known and is gone.
        """
        node = self._watch.store.get("", name)
        if node is None:
            return self._hostnames.get(name, name)
        found = hostname(node)
        if found != name and len(self._hostnames) < REMEMBERED_HOSTNAMES:
            self._hostnames[name] = found
        return found

    def _state(self, name: str) -> NodeState | None:
        node = self._watch.store.get("", name)
        if node is None:
            self._read.pop(name, None)
            since = self._missing_since.setdefault(name, self._monotonic())
            connected = self._watch.connected_since
            gone = (
                connected is not None and self._monotonic() - max(since, connected) > UNKNOWN_NODE_S
            )
            if not gone:
                return None
            return NodeState(name, hostname=self.hostname(name), exists=False, ready=False)
        read = self._read.get(name)
        if read is not None and read[0] is node:  # a run may have a thousand nodes
            return read[1]
        self._missing_since.pop(name, None)
        state = NodeState(
            name, hostname=self.hostname(name), ready=ready(node), taints=taints(node)
        )
        self._read[name] = (node, state)
        return state


def ready(node: Object) -> bool:
    """Whether its condition Ready is True."""
    conditions = node.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def taints(node: Object) -> tuple[str, ...]:
    """Keys of its taints."""
    return tuple(taint["key"] for taint in node.get("spec", {}).get("taints") or ())


def hostname(node: Object) -> str:
    """Its kubernetes.io/hostname; without that label its name."""
    metadata = node["metadata"]
    return str((metadata.get("labels") or {}).get(HOSTNAME) or metadata["name"])


def affects_runs(old: Object | None, new: Object | None) -> bool:
    """Whether a change of a node matters to the runs on it; most are mere heartbeats."""
    if old is None or new is None:
        return True
    return (ready(old), taints(old)) != (ready(new), taints(new))
