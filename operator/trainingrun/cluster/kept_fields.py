"""Which fields of each kind are kept in memory: those that the operator reads.

A pod or node of a real cluster is tens of kilobytes, most of it never read. Whoever reads a new
field adds it to `FIELDS`: the unit tests make each plan of whole objects and of what is kept of
them, and compare the two. Whoever stops reading one takes it out, which no test notices.
"""

from collections.abc import Callable, Mapping
from typing import Any

Object = Mapping[str, Any]
Fields = Mapping[str, "Fields | None"]
"""A tree of field names. None: everything below. A list is entered for each of its elements."""


def _whole(*names: str) -> Fields:
    return dict.fromkeys(names)


_OBJECT = _whole("apiVersion", "kind")
_NODE_METADATA = _whole("name", "uid", "resourceVersion")
_METADATA: Fields = {
    **_NODE_METADATA,
    **_whole("namespace", "labels", "ownerReferences", "finalizers"),
    **_whole("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
}
_CONDITIONS = _whole("type", "status", "reason", "message", "lastTransitionTime")
_CONTAINER_STATUSES = _whole("name", "ready", "state", "lastState")
_POD_GROUP: Fields = {
    "groupName": None,
    # Read to change it: the whole affinity is written back.
    "template": {"spec": _whole("affinity")},
}

FIELDS: Mapping[str, Fields] = {
    "RayJob": {
        **_OBJECT,
        "metadata": _METADATA,
        "spec": _whole("suspend"),
        "status": _whole("jobStatus", "jobDeploymentStatus", "message", "reason"),
    },
    "RayCluster": {
        **_OBJECT,
        "metadata": _METADATA,
        "spec": {"headGroupSpec": _POD_GROUP, "workerGroupSpecs": _POD_GROUP},
        "status": {"conditions": _CONDITIONS},
    },
    "Pod": {
        **_OBJECT,
        "metadata": _METADATA,
        "spec": {
            "nodeName": None,
            # Which nodes an unschedulable pod excludes.
            "affinity": _whole("nodeAffinity"),
            "containers": _whole("resources"),
        },
        "status": {
            **_whole("phase", "reason", "message", "podIP"),
            "conditions": _CONDITIONS,
            "containerStatuses": _CONTAINER_STATUSES,
            "initContainerStatuses": _CONTAINER_STATUSES,
        },
    },
    "Node": {
        **_OBJECT,
        "metadata": {**_NODE_METADATA, "labels": _whole("kubernetes.io/hostname")},
        "spec": {"taints": _whole("key")},
        "status": {"conditions": _whole("type", "status")},
    },
}
"""By kind. TrainingRuns are kept whole, for their status is written back whole; see `of_run`."""

ENDED_RUNS_LOSE = ("podTemplate",)
"""What an ended run's `spec` and its `workers` and `head` lose: nothing is rendered again."""


def projection(kind: str) -> Callable[[Object], Object]:
    """The function that takes out of an object of this kind what is kept."""
    if kind == "TrainingRun":
        return of_run
    fields = FIELDS.get(kind)
    return (lambda found: take(found, fields)) if fields else without_managed_fields


def take(found: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """What `fields` names of an object."""
    kept: dict[str, Any] = {}
    for name, below in fields.items():
        if name not in found:
            continue
        value = found[name]
        if below is None or value is None:
            kept[name] = value
        elif isinstance(value, list):
            kept[name] = [take(element, below) for element in value]
        else:
            kept[name] = take(value, below)
    return kept


def without_managed_fields(found: Object) -> Object:
    """All of it but the API server's account of who wrote what."""
    metadata = {k: v for k, v in found["metadata"].items() if k != "managedFields"}
    return {**found, "metadata": metadata}


def of_run(run: Object) -> Object:
    """A TrainingRun without notes of others and, once it has ended, without pod templates."""
    kept = dict(without_managed_fields(run))
    annotations = kept["metadata"].get("annotations", {})
    if LAST_APPLIED in annotations:  # a copy of the whole spec, which kubectl alone reads
        rest = {k: v for k, v in annotations.items() if k != LAST_APPLIED}
        kept["metadata"] = {**kept["metadata"], "annotations": rest}
    if (run.get("status") or {}).get("completionTime"):
        spec = {k: v for k, v in (run.get("spec") or {}).items() if k not in ENDED_RUNS_LOSE}
        for part in ("workers", "head"):
            if isinstance(spec.get(part), Mapping):
                spec[part] = {k: v for k, v in spec[part].items() if k not in ENDED_RUNS_LOSE}
        kept["spec"] = spec
    return kept


LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
