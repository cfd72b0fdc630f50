"""The pods of an attempt, sorted by what a reconcile asks of them.

What is read from a pod for sorting is remembered by its UID and resource version, so that a
reconcile of a thousand pods that have not changed costs a thousand dictionary reads.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from ..rendering import names
from . import pod_status
from .members import Candidate
from .model import Object
from .pod_status import Controller
from .texts import written

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
    ready: bool
    """It is well, and Ready."""
    requests: tuple[tuple[str, float], ...] | None
    """What it takes of its node, by resource; None: it has none yet, or has ended."""
    scheduled: str
    """When it got its node, as Kubernetes writes it."""
    candidate: Candidate
    """What decides whether it is the run's own."""


class PodIndex:
    """The pods of one attempt."""

    def __init__(self, pods: Sequence[tuple[Object, PodSummary]] = ()) -> None:
        """Sort these pods."""
        self._pods = pods
        self.all = [pod for pod, _ in pods]
        self.unwell = [pod for pod, summary in pods if not summary.well]
        """Those that do not simply run; every sign of a loss or of a start that hangs is there."""
        self.heads = [pod for pod, summary in pods if summary.head]

    @cached_property
    def by_uid(self) -> Mapping[str, Object]:
        """Each pod by its UID."""
        return {summary.uid: pod for pod, summary in self._pods}

    @cached_property
    def by_name(self) -> Mapping[str, Object]:
        """Each pod by its name."""
        return {summary.name: pod for pod, summary in self._pods}

    @cached_property
    def by_node(self) -> Mapping[str, list[Object]]:
        """The pods on each node."""
        pods: dict[str, list[Object]] = {}
        for pod, summary in self._pods:
            if summary.node:
                pods.setdefault(summary.node, []).append(pod)
        return pods

    @property
    def workers_on_nodes(self) -> Iterator[tuple[str, str, str]]:
        """Of each worker that holds a node: its name, the node, and since when."""
        for _, summary in self._pods:
            if not summary.head and summary.node is not None and summary.requests is not None:
                yield summary.name, summary.node, summary.scheduled

    @cached_property
    def ready_workers(self) -> frozenset[str]:
        """Names of the worker pods that are ready."""
        return frozenset(
            summary.name for _, summary in self._pods if summary.ready and not summary.head
        )

    @cached_property
    def oldest_worker(self) -> str:
        """When the first of the workers joined a head; "": none has."""
        joined = (summary.joined for _, summary in self._pods if not summary.head)
        return min(filter(None, joined), default="")


def summary_of(pod: Object) -> PodSummary:
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
    return PodSummary(
        run_uid=str(labels.get(names.RUN_UID_LABEL, "")),
        attempt=pod_status.attempt_of(pod),
        controller=pod_status.controller(pod, "RayCluster"),
        uid=pod_status.uid(pod),
        name=pod_status.name(pod),
        head=labels.get(names.ROLE_LABEL) == names.HEAD,
        node=pod_status.node_name(pod),
        joined=pod_status.joined(pod),
        well=(well := _well(pod)),
        ready=well and pod_status.ready(pod),
        requests=pod_status.requests(pod) if pod_status.holds_its_node(pod) else None,
        scheduled=_scheduled(pod),
        candidate=Candidate(
            uid=pod_status.uid(pod),
            name=pod_status.name(pod),
            owner=pod_status.controller_uid(pod, "RayCluster") or "",
            head=labels.get(names.ROLE_LABEL) == names.HEAD,
            created=pod_status.creation_text(pod),
            living=not pod_status.absent(pod),
            ended=pod_status.ended_at(pod),
            address=pod.get("status", {}).get("podIP"),
        ),
    )


def _scheduled(pod: Object) -> str:
    scheduled = pod_status.scheduled_at(pod)
    return written(scheduled) if scheduled else pod_status.creation_text(pod)


def _well(pod: Object) -> bool:
    if not pod_status.running(pod) or pod["status"].get("reason") or pod_status.ray_ending(pod):
        return False
    disruption = pod_status.condition(pod, "DisruptionTarget")
    if disruption and disruption.get("status") == "True":
        return False
    return next(pod_status.waiting(pod), None) is None
