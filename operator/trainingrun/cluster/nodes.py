"""Nodes as the control plane shows them: their conditions, and how old their kubelets' Leases are.

5,000 kubelets renew 500 Leases a second: a watch of them would cost the operator more than all of
its work, so they are read only of nodes with another sign of failure. A Lease counts as old only
after two reads found the same version of it, and its age is measured by the API server's clock
alone: the kubelet's may be off, and time in which the API server does not answer must not make
every node appear lost.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ..api.quantities import measure
from ..reconciling.model import NodeState
from ..rendering.scheduling import HOSTNAME
from .api_client import ClusterError, Connection, Forbidden, NotFound
from .object_store import Object
from .resources import path
from .run_stores import is_ready, taint_keys
from .watches import Watch

log = logging.getLogger(__name__)

UNKNOWN_NODE_S = 5.0
"""A node that pods name but that is not listed counts as gone after this, and until then as it was
known before: the event of a new node may come later than those of its first pod."""
REMEMBERED_NODES = 10_000
"""Nodes of runs that are remembered: labels and hostname of one that is gone say what was lost."""
LEASE_NAMESPACE = "kube-node-lease"
BETWEEN_READS_S = 1.0
"""The API server's clock is given in whole seconds: sooner, a second read shows nothing."""
MOST_AT_ONCE = 50
"""Leases read for one reconcile; those that wait longest come first."""
FORGOTTEN_AFTER_S = 60.0
"""The Lease of a node that was not requested for so long is forgotten."""
FORBIDDEN_RETRY_S = 60.0
"""Until a role that was missing is tried again."""


class Nodes:
    """Answers from the watch of nodes. While that is stale, every node is unknown."""

    def __init__(self, watch: Watch, monotonic: Callable[[], float] = time.monotonic):
        """Reads the watch's store at each call."""
        self._watch, self._monotonic = watch, monotonic
        self._missing_since: dict[str, float] = {}
        self._last: dict[str, tuple[Object, NodeState]] = {}

    def states(self, names: Iterable[str]) -> dict[str, NodeState]:
        """What is known of these nodes; one of which nothing is known is left out."""
        if self._watch.state != "synced" or self._watch.stale:
            return {}
        return {name: state for name in names if (state := self._state(name)) is not None}

    def _state(self, name: str) -> NodeState | None:
        node = self._watch.store.get("", name)
        last = self._last.get(name)
        if node is None:
            if len(self._missing_since) >= REMEMBERED_NODES:
                self._missing_since.clear()
            since = self._missing_since.setdefault(name, self._monotonic())
            connected = self._watch.connected_since
            gone = (
                connected is not None and self._monotonic() - max(since, connected) > UNKNOWN_NODE_S
            )
            if not gone:
                return last[1] if last is not None else None
            known = last[1] if last is not None else NodeState(name, hostname=name)
            return replace(known, exists=False, ready=False, taints=(), allocatable={})
        if last is not None and last[0] is node:  # a run may have a thousand nodes
            return last[1]
        self._missing_since.pop(name, None)
        state = NodeState(
            name,
            hostname=_hostname(node),
            ready=is_ready(node),
            taints=taint_keys(node),
            labels=node["metadata"].get("labels") or {},
            allocatable={
                resource: measure(quantity)
                for resource, quantity in (node["status"].get("allocatable") or {}).items()
            },
        )
        if last is None and len(self._last) >= REMEMBERED_NODES:
            del self._last[next(iter(self._last))]
        self._last[name] = (node, state)
        return state


def _hostname(node: Object) -> str:
    """Its kubernetes.io/hostname; without that label its name."""
    metadata = node["metadata"]
    return str((metadata.get("labels") or {}).get(HOSTNAME) or metadata["name"])


@dataclass(slots=True)
class _Reading:
    """What was read of one Lease since it was last renewed."""

    version: str
    first: datetime
    """The API server's clock at the first read of this version."""
    age_at_first_s: float
    read_at: float
    """Monotonic time of the last read."""
    seconds: float = 0.0
    """From the first to the last read of this version, by the API server's clock."""
    reads: int = 1


class Leases:
    """Reads Leases and keeps those of the nodes that were requested lately."""

    def __init__(self, connection: Connection, monotonic: Callable[[], float] = time.monotonic):
        """Reads nothing until `ages`."""
        self._connection, self._monotonic = connection, monotonic
        self._readings: dict[str, _Reading] = {}
        self._forbidden_until = 0.0

    async def ages(self, nodes: Iterable[str]) -> dict[str, float]:
        """Seconds since the last renewal, of those nodes whose Lease was read twice.

        Never raises: a Lease that cannot be read is left out.
        """
        names = sorted(set(nodes))
        now = self._monotonic()
        self._forget(now)
        if now >= self._forbidden_until:
            due = [name for name in names if now - self._read_at(name) >= BETWEEN_READS_S]
            due.sort(key=self._read_at)
            await asyncio.gather(*(self._read(name) for name in due[:MOST_AT_ONCE]))
        return {
            name: reading.age_at_first_s + reading.seconds
            for name in names
            if (reading := self._readings.get(name)) is not None and reading.reads > 1
        }

    def _read_at(self, name: str) -> float:
        reading = self._readings.get(name)
        return -1e9 if reading is None else reading.read_at

    async def _read(self, name: str) -> None:
        try:
            lease, date = await self._connection.get_dated(
                path("coordination.k8s.io/v1", "Lease", LEASE_NAMESPACE, name)
            )
        except NotFound:
            self._readings.pop(name, None)
        except Forbidden as error:
            log.info("node Leases are not read: %s", error)
            self._readings.clear()
            self._forbidden_until = self._monotonic() + FORBIDDEN_RETRY_S
        except ClusterError as error:
            log.info("Lease of node %s: %s", name, error)
        else:
            if date is not None:
                self._record(name, lease, date)

    def _record(self, name: str, lease: Mapping[str, Any], date: datetime) -> None:
        version = lease["metadata"]["resourceVersion"]
        known = self._readings.get(name)
        if known is None or known.version != version:
            age = age_of_last_write(lease, date)
            self._readings[name] = _Reading(version, date, age, self._monotonic())
            return
        known.reads += 1
        known.seconds = max(known.seconds, (date - known.first).total_seconds())
        known.read_at = self._monotonic()

    def _forget(self, now: float) -> None:
        for name, reading in list(self._readings.items()):
            if now - reading.read_at > FORGOTTEN_AFTER_S:
                del self._readings[name]


def age_of_last_write(lease: Mapping[str, Any], date: datetime) -> float:
    """Seconds from the last write to the Lease until `date`, both by the API server's clock.

    The API server notes in managedFields when it took each writer's last change. Without that note
    the age is 0, for the kubelet's own renewTime is by another clock.
    """
    written = [
        datetime.fromisoformat(entry["time"])
        for entry in lease["metadata"].get("managedFields", ())
        if entry.get("time")
    ]
    return max(0.0, (date - max(written)).total_seconds()) if written else 0.0
