"""Nodes as the control plane shows them, by our own clock.

A Lease's age is counted from when its renewal was seen here, as Kubernetes' own node controller
does: the kubelet's clock may be off. Time in which this operator heard nothing does not count, or
an API server's restart would look like the loss of every node at once.
"""

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from ..reconciling.model import NodeSight
from .cache import Object, WatchCache

UNKNOWN_NODE_S = 5.0
"""A node that pods name but that is not listed counts as gone after this: news of a new node may
come later than those of its first pod."""


class Nodes:
    """Joins the caches of nodes and of their Leases."""

    def __init__(
        self,
        nodes: WatchCache,
        leases: WatchCache,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        """Reads the caches whenever asked; `renewed` is to be told of every Lease."""
        self._nodes, self._leases, self._monotonic = nodes, leases, monotonic
        self._renewals: dict[str, tuple[str, float]] = {}
        self._missing_since: dict[str, float] = {}

    def renewed(self, lease: Object | None, name: str) -> None:
        """A Lease was seen; None: it was deleted."""
        if lease is None:
            self._renewals.pop(name, None)
            return
        renewal = lease["spec"].get("renewTime", "")
        known = self._renewals.get(name)
        if known is None:
            # At first sight only its own clock can tell how old it is.
            self._renewals[name] = (renewal, self._monotonic() - _age(renewal))
        elif known[0] != renewal:
            self._renewals[name] = (renewal, self._monotonic())

    def sights(self, names: Iterable[str]) -> dict[str, NodeSight]:
        """What is known of these nodes; one of which nothing is known is left out."""
        if self._nodes.state != "synced":
            return {}
        return {name: sight for name in names if (sight := self._sight(name)) is not None}

    def _sight(self, name: str) -> NodeSight | None:
        node = self._nodes.get("", name)
        if node is None:
            since = self._missing_since.setdefault(name, self._monotonic())
            gone = (
                self._nodes.connected_since is not None
                and self._monotonic() - max(since, self._nodes.connected_since) > UNKNOWN_NODE_S
            )
            return NodeSight(name, exists=False, ready=False) if gone else None
        self._missing_since.pop(name, None)
        return NodeSight(
            name,
            ready=ready(node),
            lease_age_s=self._lease_age(name),
            taints=taints(node),
        )

    def _lease_age(self, name: str) -> float | None:
        since = self._leases.connected_since
        if since is None or name not in self._renewals:
            return None
        return max(0.0, self._monotonic() - max(self._renewals[name][1], since))


def ready(node: Object) -> bool:
    """Whether its condition Ready is True."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def taints(node: Object) -> tuple[str, ...]:
    """Keys of its taints."""
    return tuple(taint["key"] for taint in node.get("spec", {}).get("taints", []))


def hostname(node: Object | None, name: str) -> str:
    """Its kubernetes.io/hostname, which on some clouds is not its name."""
    labels = node["metadata"].get("labels", {}) if node else {}
    return str(labels.get("kubernetes.io/hostname", name))


def looks_different(old: Object | None, new: Object | None) -> bool:
    """Whether a change of a node matters to the runs on it; most are mere heartbeats."""
    if old is None or new is None:
        return True
    return (ready(old), taints(old)) != (ready(new), taints(new))


def _age(renewal: str) -> float:
    try:
        renewed = datetime.fromisoformat(renewal)
    except ValueError:
        return 0.0
    return max(0.0, (datetime.now(UTC) - renewed).total_seconds())
