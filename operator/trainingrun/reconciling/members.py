"""Which of the pods that name an attempt's RayCluster as their controller are the attempt's own.

An owner reference is written by whoever creates a pod, and proves nothing alone. What else is
known of a pod decides:

- the head is the pod that KubeRay's own status names, or that was the head before;
- a worker is one in which the driver has a rank, or which it calls a spare one; or else one that
  was created while fewer pods were there than KubeRay keeps. It makes no other.

A forged pod is thus left out of everything beside pods that are all there. When a pod was created,
or its deletion was requested, is by the API server's clock. When it ended is by the kubelet's, when
a loss was seen by the operator's, and when it was recorded by the driver's.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from .pod_status import NamedHead
from .texts import parsed, written

SEEN_S = 10.0
"""A lost pod had its place until so many seconds before its loss was seen: its successor may have
been created before that."""

TOLD_S = 60.0
"""The driver's record of a loss and the pod's own end are so many seconds apart at most."""


class Candidate(NamedTuple):
    """A pod whose controller is, as it says, a RayCluster of the run."""

    uid: str
    name: str
    owner: str
    """UID of that RayCluster."""
    head: bool
    created: str
    """When it was created, as Kubernetes writes it; such times sort as text."""
    living: bool
    """It has not ended, and its deletion is not requested."""
    address: str | None
    """Its IP address."""
    ended: str = ""
    """When it ended, or its deletion was requested; empty: it lives, or that is not known."""


class LostPlace(NamedTuple):
    """A pod that was lost; until then it was one of those that KubeRay keeps."""

    uid: str
    """Empty: it is gone."""
    name: str
    """Empty: it is not known."""
    created: str
    """When it was created, or was there at the latest."""
    seen: str
    """When its loss was seen, or it ended."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of an attempt's pods beside what they say themselves."""

    named_heads: Mapping[str, NamedHead | None]
    """By the UID of each RayCluster, its head in KubeRay's status."""
    known: frozenset[str]
    """UIDs of the head so far and of the pods whose loss was counted."""
    joined: frozenset[str]
    """Names of the pods in which the driver has ranks, or which it calls spare."""
    kept: int
    """Worker pods that KubeRay keeps at most."""
    lost: tuple[LostPlace, ...] = ()
    """Workers that were lost."""


def foreign_pods(candidates: Sequence[Candidate], evidence: Evidence) -> frozenset[str]:
    """UIDs of those that are not the attempt's own."""
    workers = [one for one in candidates if not one.head]
    heads = [
        one.uid
        for one in candidates
        if one.head and one.uid not in evidence.known and not _is_named(one, evidence)
    ]
    return frozenset((*heads, *_foreign_workers(workers, evidence)))


def _is_named(head: Candidate, evidence: Evidence) -> bool:
    named = evidence.named_heads.get(head.owner)
    return named is not None and named.is_of(head.name, head.address)


def _foreign_workers(workers: Sequence[Candidate], evidence: Evidence) -> list[str]:
    if len(workers) <= evidence.kept and not evidence.lost:
        return []
    sure = [one for one in workers if one.uid in evidence.known or one.name in evidence.joined]
    own, foreign = {one.uid for one in sure}, []
    living = sorted(one.created for one in sure if one.living)
    all_joined = sum(one.living and one.name in evidence.joined for one in sure) >= evidence.kept
    alive = {known for one in workers if one.living for known in (one.uid, one.name)}
    lost = [
        (one.created, _until(one.seen))
        for one in evidence.lost
        if one.uid not in alive and one.name not in alive
    ]
    known = {one.uid for one in evidence.lost}
    lost += [(one.created, _until(one.ended)) for one in sure if one.ended and one.uid not in known]
    for one in sorted(workers, key=lambda one: (one.created, not one.living, one.name)):
        if one.uid in own:
            continue
        places = bisect_right(living, one.created) + sum(
            created <= one.created < until for created, until in lost
        )
        full = all_joined or (one.living and len(living) >= evidence.kept)
        if places >= evidence.kept or full:
            foreign.append(one.uid)
        elif one.living:
            insort(living, one.created)
        elif one.ended:
            lost.append((one.created, _until(one.ended)))
    return foreign


def _until(seen: str) -> str:
    return written(parsed(seen) - timedelta(seconds=SEEN_S))
