"""The stores of every kind that a run is made of, and the subscribers to their changes. No I/O.

Callers that add objects need no run: each change is mapped to the run that it is about.

Only the fields that the operator reads are kept: a pod or node of a real cluster is tens of
kilobytes, most of it never read. Whoever reads a new field adds it to `FIELDS`: the unit tests make
each plan of whole objects and of what is kept of them, and compare the two. Whoever stops reading
one takes it out, which no test notices.

Whoever creates an object with a run's label writes the object, which may be 1.4 MB: so of labels,
owners, finalizers and what a pod asks for no more is kept than the operator's own objects have.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..api.v1alpha1 import API_VERSION, KIND, KUEUE_QUEUE
from ..rendering.names import (
    ATTEMPT_LABEL,
    PLACEMENT_LABEL,
    ROLE_LABEL,
    RUN_LABEL,
    RUN_UID_LABEL,
    TOKEN_KEY_LABEL,
)
from ..rendering.platforms import capacity_labels
from ..rendering.scheduling import HOSTNAME, INSTANCE_TYPE, ZONE, excluded, excluding
from .object_store import Index, Object, Store
from .resources import RAY_API
from .run_summaries import RunSummary, summary_of

RunKey = tuple[str, str]
"""Namespace and name of a run."""
Subscriber = Callable[[str, str], None]
"""Called with namespace and name of a run that something changed about; must not block."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind and its objects."""

    api_version: str
    name: str
    store: Store

    def of_run(self, run: RunKey) -> tuple[Object, ...]:
        """The objects with the run's label, by name."""
        return self.store.by("run", run)


class Stores:
    """One store for each kind, whatever the number of namespaces."""

    def __init__(self, node_labels: Collection[str] = ()) -> None:
        """All are empty. Of nodes these labels are kept too."""
        self._subscribers: list[Subscriber] = []
        run_index: dict[str, Index] = {"run": run_key}
        self.runs = Kind(
            API_VERSION,
            KIND,
            Store(
                project=projection(KIND),
                summarize=summary_of,
                packed=True,  # most are ended ones, which are rarely read
                on_change=self._run_changed,
            ),
        )
        self.ray_jobs = self._owned(RAY_API, "RayJob", run_index)
        self.ray_clusters = self._owned(RAY_API, "RayCluster", run_index)
        self.pods = self._owned(
            "v1", "Pod", {**run_index, "node": lambda pod: pod["spec"].get("nodeName")}
        )
        self.nodes = Kind(
            "v1",
            "Node",
            Store(project=node_projection(node_labels), on_change=self._node_changed),
        )
        self.owned_by_runs = (self.ray_jobs, self.ray_clusters, self.pods)
        """The kinds that runs own; all have the index "run"."""
        self.of_runs = (self.runs, *self.owned_by_runs)
        """The kinds that runs are made of."""

    def subscribe(self, subscriber: Subscriber) -> None:
        """Calls `subscriber` for every run that something changes about from now on."""
        self._subscribers.append(subscriber)

    def kind_of(self, api_version: str, name: str) -> Kind | None:
        """A kind that runs are made of; None: it is not kept."""
        for kind in self.of_runs:
            if (kind.api_version, kind.name) == (api_version, name):
                return kind
        return None

    def store_of(self, kind: str) -> Store:
        """The store of a kind that is watched."""
        return next(one.store for one in (*self.of_runs, self.nodes) if one.name == kind)

    def update(self, obj: Object) -> None:
        """Takes in the result of a write of our own."""
        kind = self.kind_of(obj["apiVersion"], obj["kind"])
        if kind and (kind is self.runs or run_key(obj) is not None):
            kind.store.update(obj)

    def run_keys(self) -> list[RunKey]:
        """Every run that is there."""
        return self.runs.store.keys()

    def unfinished(self, namespace: str = "") -> list[RunKey]:
        """The runs, of one namespace or (empty) of all, that have not ended, and ended ones of
        which something is left in the cluster.
        """
        return [
            key
            for key in self.run_keys()
            if (not namespace or key[0] == namespace) and not self._is_done(key)
        ]

    def notify(self, *keys: RunKey | None) -> None:
        """Calls the subscribers for these runs."""
        for key in keys:
            if key is not None:
                for subscriber in self._subscribers:
                    subscriber(*key)

    def _is_done(self, key: RunKey) -> bool:
        summary = self.runs.store.summary(key)
        ended = isinstance(summary, RunSummary) and summary.ended
        return ended and not any(kind.store.has("run", key) for kind in self.owned_by_runs)

    def _owned(self, api_version: str, name: str, indices: Mapping[str, Index]) -> Kind:
        store = Store(indices=indices, project=projection(name), on_change=self._owned_changed)
        return Kind(api_version, name, store)

    def _run_changed(self, old: Object | None, new: Object | None) -> None:
        metadata = (new or old or {})["metadata"]
        self.notify((metadata["namespace"], metadata["name"]))

    def _owned_changed(self, old: Object | None, new: Object | None) -> None:
        self.notify(*{run_key(obj) for obj in (old, new) if obj is not None})

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        if _affects_runs(old, new):
            name = (new or old or {})["metadata"]["name"]
            self.notify(*{run_key(pod) for pod in self.pods.store.by("node", name)})


def run_key(owned: Object) -> RunKey | None:
    """The run whose label an object carries."""
    metadata = owned["metadata"]
    name = (metadata.get("labels") or {}).get(RUN_LABEL)
    return (metadata["namespace"], name) if name else None


def is_ready(node: Object) -> bool:
    """Whether a node's condition Ready is True."""
    conditions = node.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def taint_keys(node: Object) -> tuple[str, ...]:
    """Keys of a node's taints."""
    return tuple(taint["key"] for taint in node.get("spec", {}).get("taints") or ())


def _affects_runs(old: Object | None, new: Object | None) -> bool:
    """Whether a change of a node matters to the runs on it; most are mere heartbeats."""
    if old is None or new is None:
        return True
    return (is_ready(old), taint_keys(old)) != (is_ready(new), taint_keys(new))


LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

MOST_LISTED = 20
"""Owners and finalizers of an object that are kept: ours have one or two."""
MOST_OF_POD = 200
"""Hostnames that a pod excludes, and resources that it requests, which are kept."""
LONGEST_NAME = 317
"""Of what is kept by a name: that of a label or finalizer, which no other may exceed."""

Fields = Mapping[str, "Fields | Callable[[Any], Any] | None"]
"""A tree of field names. None: everything below. A function: what it makes of it. A list is entered
for each of its elements."""


def _whole(*names: str) -> Fields:
    return dict.fromkeys(names)


def _name(text: Any) -> str:
    return str(text)[:LONGEST_NAME]


def _first_owners(owners: list[Object]) -> list[Object]:
    return [_take(owner, _OWNER) for owner in owners[:MOST_LISTED]]


def _first_names(names: list[str]) -> list[str]:
    return [_name(name) for name in names[:MOST_LISTED]]


def _exclusions(affinity: Object) -> Object:
    """The nodes that an unschedulable pod excludes."""
    names = sorted(name for name in excluded(affinity) if len(name) <= LONGEST_NAME)
    return excluding({}, names[:MOST_OF_POD])


def _requests(containers: list[Object]) -> list[Object]:
    """What the pod's containers request."""
    left = MOST_OF_POD
    kept: list[Object] = []
    for container in containers:
        requests = (container.get("resources") or {}).get("requests") or {}
        # None of something has no price, and would take the place of what has one.
        asked = ((name, amount) for name, amount in requests.items() if amount != "0")
        some = {_name(name): amount for name, amount in islice(asked, left)}
        if some:
            kept.append({"resources": {"requests": some}})
            left -= len(some)
    return kept


_OBJECT = _whole("apiVersion", "kind")
_NODE_METADATA = _whole("name", "uid", "resourceVersion")
_OWNER: Fields = {"controller": None, "kind": _name, "name": _name, "uid": _name}


def _metadata(*labels: str) -> Fields:
    return {
        **_NODE_METADATA,
        **_whole("namespace"),
        "labels": _whole(RUN_LABEL, RUN_UID_LABEL, ATTEMPT_LABEL, *labels),
        "ownerReferences": _first_owners,
        "finalizers": _first_names,
        **_whole("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
    }


_CONDITIONS = _whole("type", "status", "reason", "message", "lastTransitionTime")
_CONTAINER_STATUSES = _whole("name", "image", "ready", "state", "lastState")


def _pod_group(*of_spec: str) -> Fields:
    template = {"metadata": {"labels": _whole(PLACEMENT_LABEL)}, "spec": _whole(*of_spec)}
    return {"groupName": None, "template": template}


# The affinity is read to change it: it is written back as a whole.
_POD_GROUP = _pod_group("affinity")
_WORKER_GROUP: Fields = {
    # Others have added to the selector and tolerations: what they have stays.
    **_pod_group("affinity", "nodeSelector", "tolerations"),
    **_whole("replicas", "scaleStrategy"),
}

FIELDS: Mapping[str, Fields] = {
    "RayJob": {
        **_OBJECT,
        "metadata": _metadata(KUEUE_QUEUE),
        "spec": _whole("suspend", "ttlSecondsAfterFinished", "managedBy"),
        "status": _whole("jobStatus", "jobDeploymentStatus", "message", "reason", "endTime"),
    },
    "RayCluster": {
        **_OBJECT,
        "metadata": _metadata(),
        "spec": {"headGroupSpec": _POD_GROUP, "workerGroupSpecs": _WORKER_GROUP},
        "status": {"conditions": _CONDITIONS, "head": _whole("podName", "podIP")},
    },
    "Pod": {
        **_OBJECT,
        "metadata": _metadata(ROLE_LABEL, TOKEN_KEY_LABEL, PLACEMENT_LABEL),
        "spec": {
            "nodeName": None,
            "affinity": _exclusions,
            "containers": _requests,
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
        "metadata": {
            **_NODE_METADATA,
            "labels": _whole(HOSTNAME, ZONE, INSTANCE_TYPE, *capacity_labels()),
        },
        "spec": {"taints": _whole("key")},
        "status": {"conditions": _whole("type", "status"), "allocatable": None},
    },
}
"""By kind. TrainingRuns are kept whole, for their status is written back whole; see `_of_run`."""

ENDED_RUNS_LOSE = ("podTemplate",)
"""What an ended run's `spec` and its `workers` and `head` lose: nothing is rendered again."""


def projection(kind: str) -> Callable[[Object], Object]:
    """The function that takes out of an object of this kind what is kept."""
    if kind == "TrainingRun":
        return _of_run
    return lambda obj: _take(obj, FIELDS[kind])


def node_projection(labels: Collection[str]) -> Callable[[Object], Object]:
    """The same of nodes, with these labels too."""
    fields: dict[str, Any] = dict(FIELDS["Node"])
    known = fields["metadata"]["labels"]
    fields["metadata"] = {**fields["metadata"], "labels": {**known, **_whole(*labels)}}
    return lambda obj: _take(obj, fields)


def _take(source: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """What `fields` names of an object."""
    kept: dict[str, Any] = {}
    for name, below in fields.items():
        if name not in source:
            continue
        value = source[name]
        if below is None or value is None:
            kept[name] = value
        elif callable(below):
            kept[name] = below(value)
        elif isinstance(value, list):
            kept[name] = [_take(element, below) for element in value]
        else:
            kept[name] = _take(value, below)
    return kept


def _of_run(run: Object) -> Object:
    """A TrainingRun without notes of others and, once it has ended, without pod templates."""
    metadata = {name: value for name, value in run["metadata"].items() if name != "managedFields"}
    if "annotations" in metadata:  # one is a copy of the whole spec, which kubectl alone reads
        annotations = metadata["annotations"].items()
        metadata["annotations"] = {k: v for k, v in annotations if k != LAST_APPLIED}
    kept = {**run, "metadata": metadata}
    if (run.get("status") or {}).get("completionTime"):
        spec = {k: v for k, v in (run.get("spec") or {}).items() if k not in ENDED_RUNS_LOSE}
        for part in ("workers", "head"):
            if isinstance(spec.get(part), Mapping):
                spec[part] = {k: v for k, v in spec[part].items() if k not in ENDED_RUNS_LOSE}
        kept["spec"] = spec
    return kept
