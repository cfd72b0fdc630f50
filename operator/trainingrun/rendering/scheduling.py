"""Where and when pods may run: queue, capacity, excluded nodes, and placement of workers."""

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..api.status import WorkerNodes
from ..api.v1alpha1 import KUEUE, KUEUE_QUEUE, TrainingRun
from . import names
from .platforms import Platform

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

EXCLUSION = "excluded-by.trainingrun.dev"
"""A hostname that no node has, in every exclusion of ours: it distinguishes ours from a user's own
`kubernetes.io/hostname NotIn`."""


_WORDS: Mapping[WorkerNodes, str] = {"OnDemand": "on-demand", "Spot": "spot", "Any": "any"}
"""How the label of a placement begins."""


class Placement(NamedTuple):
    """Which nodes new workers go to, of those that the spec allows."""

    capacity: WorkerNodes
    """Any: spot is preferred."""
    avoided: tuple[tuple[str, str], ...] = ()
    """Labels of the spot nodes that they do not go to, with values."""

    product: str | None = None
    """One of accelerator.products; None: the first one."""

    @property
    def label(self) -> str:
        """Value of the label of pods that were made for it."""
        word = _WORDS[self.capacity]
        if not self.avoided and self.product is None:
            return word
        text = json.dumps([self.product, *sorted(self.avoided)])
        return f"{word}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def first_placement(run: TrainingRun) -> Placement:
    """What the run's spec asks for before anything else."""
    workers = run.spec.workers
    match workers.capacity.type:
        case "PreferSpot":
            # A node group grows for what a pod requires: autoscalers do not see a preference.
            return Placement("Any" if workers.placement == "Spread" else "Spot")
        case kind:
            return Placement(kind)


def can_change(run: TrainingRun) -> bool:
    """Whether new workers of the run may go to other nodes than its first ones."""
    workers = run.spec.workers
    several = workers.accelerator is not None and len(workers.accelerator.choices) > 1
    return workers.capacity.type != "OnDemand" or several


def head_affinity(platform: Platform, excluded_hostnames: tuple[str, ...]) -> dict[str, Any]:
    """The head's: never spot, for its loss costs more than a worker's."""
    return {
        "nodeAffinity": _required([{}], [*_off_spot(platform), *_off_nodes(excluded_hostnames)])
    }


def worker_affinity(
    run: TrainingRun,
    number: int,
    platform: Platform,
    excluded_hostnames: tuple[str, ...],
    placement: Placement,
) -> dict[str, Any]:
    """A worker's; empty where any node will do."""
    everywhere = _off_nodes(excluded_hostnames)
    match placement.capacity:
        case "OnDemand":
            node = _required([{}], [*_off_spot(platform), *everywhere])
        case "Spot":
            # Terms are alternatives: a cloud may label its spot nodes in more than one way.
            node = _required(_on_spot(platform), [*_off(placement.avoided), *everywhere])
        case "Any":
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


def _off(avoided: tuple[tuple[str, str], ...]) -> list[dict[str, Any]]:
    labels: dict[str, list[str]] = {}
    for label, value in sorted(avoided):
        labels.setdefault(label, []).append(value)
    return [
        {"key": label, "operator": "NotIn", "values": values} for label, values in labels.items()
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


def excluding(affinity: Mapping[str, Any], hostnames: Sequence[str]) -> dict[str, Any]:
    """The affinity with these hostnames in the place of those that an exclusion of ours names."""
    changed: dict[str, Any] = copy.deepcopy(dict(affinity))
    node = changed.get("nodeAffinity") or {}
    terms = list((node.get(REQUIRED) or {}).get("nodeSelectorTerms") or ())
    if hostnames:
        ours = exclusion(tuple(hostnames))
        # Terms are alternatives, so each of them has to say it.
        terms = [_with(ours, _without_ours(term)) for term in terms or [{}]]
    else:
        # An empty term, which is left of one that said nothing else, would match no node at all.
        terms = [rest for term in terms if (rest := _without_ours(term)) or not term]
    _set(node, REQUIRED, {"nodeSelectorTerms": terms} if terms else {})
    _set(changed, "nodeAffinity", node)
    return changed


def _without_ours(term: Mapping[str, Any]) -> dict[str, Any]:
    if not any(is_exclusion(found) for found in term.get("matchExpressions") or ()):
        return dict(term)
    kept = [found for found in term["matchExpressions"] if not is_exclusion(found)]
    rest = {key: value for key, value in term.items() if key != "matchExpressions"}
    return {**rest, "matchExpressions": kept} if kept else rest


def _with(requirement: Mapping[str, Any], term: Mapping[str, Any]) -> dict[str, Any]:
    return {**term, "matchExpressions": [*term.get("matchExpressions", []), requirement]}


def _set(parent: dict[str, Any], key: str, value: Mapping[str, Any]) -> None:
    if value:
        parent[key] = value
    else:
        parent.pop(key, None)


def placement_label(metadata: Mapping[str, Any]) -> str | None:
    """The placement for which a pod, or a pod template, with this metadata was made; None: the
    first one of a run of which it may change, or the only one.
    """
    return (metadata.get("labels") or {}).get(names.PLACEMENT_LABEL)


def placement_of_cluster(ray_cluster: Mapping[str, Any]) -> str | None:
    """The same of the worker group of a RayCluster."""
    return placement_label(worker_template(ray_cluster).get("metadata") or {})


def worker_template(ray_cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod template of the worker group of a RayCluster; empty: there is none."""
    for group in (ray_cluster.get("spec") or {}).get("workerGroupSpecs") or ():
        if group.get("groupName") == names.WORKER_GROUP:
            return group.get("template") or {}
    return {}


def placement_of_label(run: TrainingRun, label: str | None) -> Placement | None:
    """The placement with this label, see `placement_label`; None: it is none of ours.

    Without the product and what is avoided, which the label does not tell.
    """
    if label is None:
        return first_placement(run)
    for capacity, word in _WORDS.items():
        if re.fullmatch(f"{word}(-[0-9a-f]{{8}})?", label):
            return Placement(capacity)
    return None


def replaced(
    live: Mapping[str, Any], former: Mapping[str, Any] | None, new: Mapping[str, Any]
) -> dict[str, Any]:
    """`affinity`, `nodeSelector` and `tolerations` of a new placement, beside what others have
    added to the last two of a live pod spec.

    Those are the node labels and tolerations of a flavor, which Kueue writes into the pod templates
    of what it admits.

    Args:
        live: The pod spec; of a RayCluster's worker group.
        former: The three fields as they are rendered for the placement that it has; None: which one
            that is is not known, and nothing is taken out.
        new: The same for the new one.
    """
    selector, tolerations = live.get("nodeSelector") or {}, live.get("tolerations") or []
    if former is None:
        kept = [each for each in new["tolerations"] if each in tolerations]
        former = {"nodeSelector": {}, "tolerations": kept}
    others = {key: value for key, value in selector.items() if key not in former["nodeSelector"]}
    return {
        "affinity": new["affinity"],
        "nodeSelector": {**others, **new["nodeSelector"]},
        "tolerations": _replaced_items(tolerations, former["tolerations"], new["tolerations"]),
    }


def _replaced_items(live: list[Any], former: list[Any], new: list[Any]) -> list[Any]:
    """Once each: where another one has added the same, one of the two stays."""
    found = list(live)
    for item in former:
        if item not in new and item in found:
            found.remove(item)
    return [*found, *(item for item in new if item not in former or item not in found)]


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

    @property
    def suspends(self) -> bool:
        """Whether the RayJob begins suspended: Kueue ends that when it admits it.

        Kueue's webhook suspends a new RayJob too. Where it does not see one, KubeRay would make
        pods for a moment, which Kueue then takes away.
        """
        return KUEUE_QUEUE in self.job_labels


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
