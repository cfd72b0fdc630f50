"""The pods of one run, sorted once for each reconcile.

What is read from a pod for sorting is remembered by its UID and resource version, so that a
reconcile of a thousand pods that have not changed costs a thousand dictionary reads.
"""

from collections.abc import Container, Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from ..rendering import names
from . import pod_status
from .model import Object
from .pod_status import Controller

MOST_REMEMBERED = 50_000
"""Summaries kept; beyond that all are read anew."""

_REMEMBERED: dict[tuple[str, str], "PodSummary"] = {}


class PodSummary(NamedTuple):
    """What a pod is sorted by."""

    run_uid: str
    attempt: int | None
    controller: Controller | None
    """Its RayCluster."""
    uid: str
    name: str
    head: bool
    node: str | None
    joined: str
    """When Ray began in it, as Kubernetes writes it; such times sort as text."""
    well: bool
    """It runs, nothing has ended or waits in it, and its deletion is not requested."""


class PodIndex:
    """The pods of one attempt."""

    def __init__(self) -> None:
        """Empty until `add`."""
        self.all: list[Object] = []
        self.unwell: list[Object] = []
        """Those that do not simply run; every sign of a loss or of a start that hangs is there."""
        self.heads: list[Object] = []
        self._summaries: list[PodSummary] = []

    def add(self, pod: Object, summary: PodSummary) -> None:
        """Take a pod in."""
        self.all.append(pod)
        self._summaries.append(summary)
        if not summary.well:
            self.unwell.append(pod)
        if summary.head:
            self.heads.append(pod)

    @cached_property
    def by_uid(self) -> Mapping[str, Object]:
        """Each pod by its UID."""
        return {known.uid: pod for known, pod in zip(self._summaries, self.all, strict=True)}

    @cached_property
    def by_name(self) -> Mapping[str, Object]:
        """Each pod by its name."""
        return {known.name: pod for known, pod in zip(self._summaries, self.all, strict=True)}

    @cached_property
    def by_node(self) -> Mapping[str, list[Object]]:
        """The pods on each node."""
        found: dict[str, list[Object]] = {}
        for known, pod in zip(self._summaries, self.all, strict=True):
            if known.node:
                found.setdefault(known.node, []).append(pod)
        return found

    @cached_property
    def oldest_worker(self) -> str:
        """When the first of the workers joined a head; "": none has."""
        joined = (known.joined for known in self._summaries if not known.head)
        return min(filter(None, joined), default="")


def sort(
    found: Iterable[Object], run_uid: str, ray_clusters: Container[str]
) -> dict[int, PodIndex]:
    """The run's own pods by attempt: those that one of these RayClusters controls, by UID."""
    attempts: dict[int, PodIndex] = {}
    for pod in found:
        known = summary(pod)
        if known.run_uid != run_uid or known.attempt is None or known.controller is None:
            continue
        if known.controller.uid not in ray_clusters:
            continue
        index = attempts.get(known.attempt)
        if index is None:
            index = attempts[known.attempt] = PodIndex()
        index.add(pod, known)
    return attempts


def summary(pod: Object) -> PodSummary:
    """What the pod is sorted by."""
    metadata = pod["metadata"]
    version = metadata.get("resourceVersion")
    if not version:
        return _read(pod)
    key = (metadata["uid"], version)
    known = _REMEMBERED.get(key)
    if known is None:
        if len(_REMEMBERED) >= MOST_REMEMBERED:
            _REMEMBERED.clear()
        known = _REMEMBERED[key] = _read(pod)
    return known


def _read(pod: Object) -> PodSummary:
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    number = str(labels.get(names.ATTEMPT_LABEL, ""))
    return PodSummary(
        run_uid=str(labels.get(names.RUN_UID_LABEL, "")),
        attempt=int(number) if number.isdecimal() else None,
        controller=pod_status.controller(pod, "RayCluster"),
        uid=pod_status.uid(pod),
        name=pod_status.name(pod),
        head=labels.get(names.ROLE_LABEL) == names.HEAD,
        node=pod_status.node_name(pod),
        joined=pod_status.joined(pod),
        well=_well(pod),
    )


def _well(pod: Object) -> bool:
    if not pod_status.running(pod) or pod["status"].get("reason") or pod_status.ray_ending(pod):
        return False
    disruption = pod_status.condition(pod, "DisruptionTarget")
    if disruption and disruption.get("status") == "True":
        return False
    return next(pod_status.waiting(pod), None) is None
