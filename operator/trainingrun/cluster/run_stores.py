"""The stores of every kind that a run is made of, and the subscribers to their changes. No I/O.

Callers that add objects need no run: each change is mapped to the run that it is about.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..api.v1alpha1 import API_VERSION, KIND
from ..rendering.names import RUN_LABEL
from . import kept_fields
from .node_states import affects_runs
from .object_store import Index, Object, Store
from .resources import RAY_API

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


class RunSummary(NamedTuple):
    """What is counted of runs without reading each."""

    namespace: str
    phase: str
    ended: bool
    disruptions: tuple[tuple[str, int], ...]
    """Losses by kind, such as ("preemptions", 2)."""


class Stores:
    """One store for each kind, whatever the number of namespaces."""

    def __init__(self) -> None:
        """All are empty."""
        self._subscribers: list[Subscriber] = []
        run_index: dict[str, Index] = {"run": run_key}
        self.runs = Kind(
            API_VERSION,
            KIND,
            Store(
                project=kept_fields.projection(KIND),
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
            Store(project=kept_fields.projection("Node"), on_change=self._node_changed),
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

    def saw(self, seen: Object) -> None:
        """Takes in the result of a write of our own."""
        kind = self.kind_of(seen["apiVersion"], seen["kind"])
        if kind and (kind is self.runs or run_key(seen) is not None):
            kind.store.saw(seen)

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
        store = Store(
            indices=indices, project=kept_fields.projection(name), on_change=self._owned_changed
        )
        return Kind(api_version, name, store)

    def _run_changed(self, old: Object | None, new: Object | None) -> None:
        metadata = (new or old or {})["metadata"]
        self.notify((metadata["namespace"], metadata["name"]))

    def _owned_changed(self, old: Object | None, new: Object | None) -> None:
        self.notify(*{run_key(found) for found in (old, new) if found is not None})

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        if affects_runs(old, new):
            name = (new or old or {})["metadata"]["name"]
            self.notify(*{run_key(pod) for pod in self.pods.store.by("node", name)})


def summary_of(run: Object) -> RunSummary:
    """The summary of a TrainingRun."""
    status: Mapping[str, Any] = run.get("status") or {}
    return RunSummary(
        run["metadata"]["namespace"],
        status.get("phase") or "Pending",
        bool(status.get("completionTime")),
        tuple(sorted((status.get("disruptions") or {}).items())),
    )


def run_key(owned: Object) -> RunKey | None:
    """The run whose label an object carries."""
    metadata = owned["metadata"]
    name = (metadata.get("labels") or {}).get(RUN_LABEL)
    return (metadata["namespace"], name) if name else None
