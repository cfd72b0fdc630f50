"""Where and when pods may run: queue, capacity, excluded nodes, and placement of workers."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..api.v1alpha1 import KUEUE, KUEUE_QUEUE, TrainingRun
from . import names
from .platforms import Platform

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

EXCLUSION = "excluded-by.trainingrun.dev"
"""A hostname that no node has, in every exclusion of ours: it distinguishes ours from a user's own
`kubernetes.io/hostname NotIn`."""


def head_affinity(platform: Platform, excluded_hostnames: tuple[str, ...]) -> dict[str, Any]:
    """The head's: never spot, for its loss costs more than a worker's."""
    return {
        "nodeAffinity": _required([{}], [*_off_spot(platform), *_off_nodes(excluded_hostnames)])
    }


def worker_affinity(
    run: TrainingRun, number: int, platform: Platform, excluded_hostnames: tuple[str, ...]
) -> dict[str, Any]:
    """A worker's; empty where any node will do."""
    everywhere = _off_nodes(excluded_hostnames)
    match run.spec.workers.capacity.type:
        case "OnDemand":
            node = _required([{}], [*_off_spot(platform), *everywhere])
        case "Spot":
            # Terms are alternatives: a cloud may label its spot nodes in more than one way.
            node = _required(_on_spot(platform), everywhere)
        case "PreferSpot":
            node = _required([{}], everywhere) if everywhere else {}
            node[_PREFERRED] = [{"weight": 100, "preference": term} for term in _on_spot(platform)]
    return {"nodeAffinity": node, **_placement(run, number)}


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
    same_zone = {"weight": 100, "podAffinityTerm": {**term, "topologyKey": ZONE}}
    match run.spec.workers.placement:
        case "Pack":
            preferred = [same_zone, {"weight": 50, "podAffinityTerm": term}]
            return {"podAffinity": {_PREFERRED: preferred}}
        case "StrictPack":
            return {"podAffinity": {REQUIRED: [term]}}
        case "StrictSpread":
            return {"podAntiAffinity": {REQUIRED: [term]}}
        case "Spread":
            # Beside the topology spread: the scheduler gives a preferred kind of node, whatever its
            # weight, as many points as an empty one, and all workers would go to the one spot node.
            preferred = [{"weight": 100, "podAffinityTerm": term}]
            return {"podAntiAffinity": {_PREFERRED: preferred}}


def _attempts_workers(run: TrainingRun, number: int) -> dict[str, Any]:
    # Of this attempt only: the former one's pods may still be going, and are no neighbors.
    return {"matchLabels": names.selector(run, number, names.WORKER)}


def _required(terms: list[dict[str, Any]], everywhere: list[dict[str, Any]]) -> dict[str, Any]:
    """Node affinity: one of the terms, and in any case all of `everywhere`."""
    return {
        REQUIRED: {
            "nodeSelectorTerms": [
                {"matchExpressions": [*term.get("matchExpressions", []), *everywhere]}
                for term in terms
            ]
        }
    }


def _on_spot(platform: Platform) -> list[dict[str, Any]]:
    return [
        {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
        for key, value in platform.spot.spot_labels
    ]


def _off_spot(platform: Platform) -> list[dict[str, Any]]:
    return [
        {"key": key, "operator": "NotIn", "values": [value]}
        for key, value in platform.spot.on_demand_excludes
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


class Queueing(NamedTuple):
    """Empty where no queue is requested."""

    job_labels: dict[str, str]
    """Labels of the RayJob; KubeRay copies them to the RayCluster."""
    pod_labels: dict[str, str]
    """Labels of every pod."""
    scheduler: str | None
    """The pods' schedulerName; None: the cluster's own."""


def queueing(run: TrainingRun, number: int) -> Queueing:
    """For the queue that the run names.

    KubeRay 1.6 passes the labels to its pods only where it was installed with that batch scheduler;
    they are on the pods as well, so that the queue is kept in any case. Gangs need that option.
    """
    chosen = _chosen(run, number)
    # Labels for Kueue that a user has put on the run, such as its priority class, mean the object
    # that Kueue admits.
    own = {key: value for key, value in run.metadata.labels.items() if key.startswith(f"{KUEUE}/")}
    return chosen._replace(job_labels={**own, **chosen.job_labels})


def _chosen(run: TrainingRun, number: int) -> Queueing:
    queue = run.spec.scheduling.queue
    if queue is None:
        return Queueing({}, {}, None)
    match queue.kind:
        case "Kueue":
            # On the RayJob alone: Kueue admits the outermost object and suspends it meanwhile.
            return Queueing({KUEUE_QUEUE: queue.name}, {}, None)
        case "Volcano":
            label = {"volcano.sh/queue-name": queue.name}
            priority = run.spec.scheduling.priority_class_name
            job = {**label, "ray.io/priority-class-name": priority} if priority else label
            return Queueing(job, label, "volcano")
        case "YuniKorn":
            application = names.ray_job_name(run, number)
            return Queueing(
                {
                    "yunikorn.apache.org/app-id": application,
                    "yunikorn.apache.org/queue": queue.name,
                    "ray.io/gang-scheduling-enabled": "true",
                },
                {"applicationId": application, "queue": queue.name},
                "yunikorn",
            )
        case "KAI":
            label = {"kai.scheduler/queue": queue.name}
            return Queueing(label, label, "kai-scheduler")
