"""Where pods may run: kind of capacity, excluded nodes, and how workers lie to each other."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..api.v1alpha1 import TrainingRun
from . import names
from .platforms import Platform

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

EXCLUSION = "excluded-by.trainingrun.dev"
"""A hostname that no node has, in every exclusion of ours: it distinguishes ours from a user's own
`kubernetes.io/hostname NotIn`."""


def head(platform: Platform, excluded_hostnames: tuple[str, ...]) -> dict[str, Any]:
    """The head's: never spot, for its loss costs more than a worker's."""
    return {
        "nodeAffinity": _required([{}], [*_off_spot(platform), *_off_nodes(excluded_hostnames)])
    }


def worker(
    run: TrainingRun, number: int, platform: Platform, excluded_hostnames: tuple[str, ...]
) -> dict[str, Any]:
    """A worker's; empty where any node will do."""
    affinity: dict[str, Any] = {}
    everywhere = _off_nodes(excluded_hostnames)
    match run.spec.workers.capacity.type:
        case "OnDemand":
            node = _required([{}], [*_off_spot(platform), *everywhere])
        case "Spot":
            # Terms are alternatives: a cloud may label its spot nodes in more than one way.
            node = _required(_on_spot(platform), everywhere)
        case "PreferSpot":
            node = _required([{}], everywhere) if everywhere else {}
            node["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": 100, "preference": term} for term in _on_spot(platform)
            ]
    affinity["nodeAffinity"] = node
    return {**affinity, **_placement(run, number)}


def spread(run: TrainingRun, number: int) -> list[dict[str, Any]]:
    """A worker's topologySpreadConstraints: `Spread` prefers nodes that are not shared."""
    if run.spec.workers.placement != "Spread":
        return []
    return [
        {
            "maxSkew": 1,
            "topologyKey": HOSTNAME,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": _attempts_workers(run, number),
        }
    ]


def _placement(run: TrainingRun, number: int) -> dict[str, Any]:
    term = {"labelSelector": _attempts_workers(run, number), "topologyKey": HOSTNAME}
    same_zone = {
        "weight": 100,
        "podAffinityTerm": {**term, "topologyKey": ZONE},
    }
    match run.spec.workers.placement:
        case "Pack":
            preferred = [same_zone, {"weight": 50, "podAffinityTerm": term}]
            return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
        case "StrictPack":
            return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        case "StrictSpread":
            return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        case "Spread":
            # Beside the topology spread: the scheduler gives a preferred kind of node, whatever its
            # weight, as many points as an empty one, and all workers would go to the one spot node.
            preferred = [{"weight": 100, "podAffinityTerm": term}]
            return {
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
            }


def _attempts_workers(run: TrainingRun, number: int) -> dict[str, Any]:
    # Of this attempt only: the former one's pods may still be going, and are no neighbors.
    return {"matchLabels": names.selector(run, number, names.WORKER)}


def _required(terms: list[dict[str, Any]], everywhere: list[dict[str, Any]]) -> dict[str, Any]:
    """Node affinity: one of the terms, and in any case all of `everywhere`."""
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [*term.get("matchExpressions", []), *everywhere]}
                for term in terms
            ]
        }
    }


def _on_spot(platform: Platform) -> list[dict[str, Any]]:
    return [
        {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
        for key, value in platform.spot_labels
    ]


def _off_spot(platform: Platform) -> list[dict[str, Any]]:
    return [
        {"key": key, "operator": "NotIn", "values": [value]}
        for key, value in platform.on_demand_excludes
    ]


def _off_nodes(nodes: tuple[str, ...]) -> list[dict[str, Any]]:
    return [exclusion(nodes)] if nodes else []


def exclusion(hostnames: tuple[str, ...]) -> dict[str, Any]:
    """The node selector requirement that keeps pods off these hostnames."""
    return {
        "key": HOSTNAME,
        "operator": "NotIn",
        "values": [EXCLUSION, *sorted(set(hostnames) - {EXCLUSION})],
    }


def is_exclusion(requirement: Mapping[str, Any]) -> bool:
    """Whether a node selector requirement is one that `exclusion` made."""
    return (
        requirement.get("key") == HOSTNAME
        and requirement.get("operator") == "NotIn"
        and EXCLUSION in (requirement.get("values") or ())
    )


def excluded(affinity: Mapping[str, Any] | None) -> set[str]:
    """The hostnames that an affinity excludes by an exclusion of ours."""
    required = (((affinity or {}).get("nodeAffinity") or {}).get(REQUIRED)) or {}
    return {
        hostname
        for term in required.get("nodeSelectorTerms") or ()
        for requirement in term.get("matchExpressions") or ()
        if is_exclusion(requirement)
        for hostname in requirement["values"]
        if hostname != EXCLUSION
    }


def excluded_by_cluster(ray_cluster: Mapping[str, Any]) -> set[str]:
    """The hostnames that a RayCluster's pods exclude by an exclusion of ours."""
    return {
        hostname
        for group in _groups(ray_cluster)
        for hostname in excluded(((group.get("template") or {}).get("spec") or {}).get("affinity"))
    }


def _groups(ray_cluster: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    spec = ray_cluster.get("spec") or {}
    yield spec.get("headGroupSpec") or {}
    yield from spec.get("workerGroupSpecs") or ()
