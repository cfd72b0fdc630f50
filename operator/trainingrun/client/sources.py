"""Where runs are: in a cluster, or in folders of this machine.

Both give a run as the API server does, so whoever shows one has one view of it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..api.errors import RunError
from ..api.status import Phase
from ..local import records
from ..local.folder import all_roots, own_folder, own_run
from ..local.run_line import condition
from . import following, retried_run
from .defaults import where_storage_is_missing

if TYPE_CHECKING:
    from .kube import Kube

ENDED = (Phase.SUCCEEDED, Phase.FAILED)
"""Phases after which nothing happens to a run any more."""


@dataclass(frozen=True)
class Cluster:
    """The runs of a cluster."""

    namespace: str | None = None
    context: str | None = None

    @functools.cached_property
    def kube(self) -> "Kube":
        """The cluster itself, which is not needed to read a bucket."""
        # Imported late: Kubernetes' client takes a second to load.
        from .kube import Kube

        return Kube(self.context, self.namespace)

    def within(self, namespace: str) -> "Cluster":
        """The same cluster, by the same connections, with the runs of another namespace."""
        found = Cluster(namespace, self.context)
        vars(found)["kube"] = self.kube.within(namespace)
        return found

    def where(self, everywhere: bool) -> str:
        """Where `runs` looks, in words."""
        return "any namespace" if everywhere else f"namespace {self.kube.namespace}"

    def runs(self, everywhere: bool) -> list[dict[str, Any]]:
        """The runs of the namespace, or of all of them."""
        return self.kube.runs(everywhere)

    def run(self, name: str) -> dict[str, Any]:
        """One run.

        Raises:
            RunError: There is none of that name.
        """
        return self.kube.run(name)

    def followed(self, name: str) -> following.Followed:
        """The same, to be followed; one that is suspended goes on once somebody resumes it."""
        ends = frozenset((*ENDED, Phase.DELETING))
        return following.of_name(name, lambda: self.kube.run(name), ends)

    def set_suspend(self, name: str, wanted: bool) -> None:
        """Have a run save a checkpoint and free its pods, or continue from that checkpoint.

        Raises:
            RunError: It has ended, or it is asked for that already.
        """
        run = self.run(name)
        status, where = run.get("status") or {}, self.where(False)
        if (phase := status.get("phase")) in ENDED:
            goes_on = status.get("checkpoint") and "sweep" not in run["spec"]
            begins = "from its checkpoint" if goes_on else "with its spec"
            raise RunError(
                f"TrainingRun {name} in {where} has ended ({phase}); `retry` begins a run {begins}"
            )
        if run["spec"].get("suspend", False) is wanted:
            said = "asked to suspend already" if wanted else _why_not_resumed(run)
            raise RunError(f"TrainingRun {name} in {where} is {said}")
        self.kube.set_suspend(name, wanted)

    def retried(
        self,
        name: str,
        new_name: str | None,
        step: int | None,
        settings: Sequence[str] = (),
        changes: Mapping[str, Any] | None = None,
        *,
        say: Callable[[str], None],
    ) -> dict[str, Any]:
        """The manifest of a new run, as `retried_run.retried`; it is not created.

        Args:
            name: Of the former run.
            new_name: Of the new one; None: `<name>-retry-1`, -2, …
            step: Step of the checkpoint; None: the newest intact one.
            settings: Changes of the spec, each `path=value`.
            changes: Changes of the spec as an object.
            say: Takes a sentence about defaults that may not be read.
        """
        former = self.run(name)
        if new_name is None:
            taken = [run["metadata"]["name"] for run in self.runs(everywhere=False)]
            new_name = retried_run.free_name(name, taken)
        lookup = where_storage_is_missing(lambda: self.kube, say)
        return retried_run.retried(former, new_name, step, settings, changes, lookup)

    def delete(self, name: str) -> None:
        """Delete a run and its pods; its folder in the bucket is kept.

        Raises:
            RunError: There is none of that name, or it may not be deleted.
        """
        self.kube.delete(name)


def _why_not_resumed(run: dict[str, Any]) -> str:
    if (condition(run, "Suspended") or {}).get("reason") == "BudgetSpent":
        return "suspended by its budget; raise spec.budget.amount to continue"
    return "not suspended"


@dataclass(frozen=True)
class ThisMachine:
    """The runs that `trainingrun run --local` has trained."""

    folder: Path | None = None
    own: Path | None = None
    """The folder of the one run that is meant; None: the latest one of each name."""

    def where(self, _everywhere: bool) -> str:
        """Where `runs` looks, in words."""
        return str(self.folder or Path("trainingrun-local").absolute())

    def runs(self, _everywhere: bool) -> list[dict[str, Any]]:
        """All runs; they have no namespace."""
        return [run for _, run in records.all_runs(all_roots(self.folder))]

    def run(self, name: str) -> dict[str, Any]:
        """The latest run of a name.

        Raises:
            LocalError: There is none.
        """
        return self.own_run(name)[1]

    def own_run(self, name: str) -> tuple[Path, dict[str, Any]]:
        """The same behind its own folder, which may be that of another run at the next look."""
        if self.own is None:
            return own_run(name, self.folder)
        return self.own, following.of_folder(self.own).ask()

    def followed(self, name: str) -> following.Followed:
        """The same, to be followed."""
        return following.of_folder(self.own or self.own_run(name)[0])

    def own_folder(self, name: str) -> Path:
        """The folder of the latest run of a name; of all runs where there is no record of one."""
        return self.own or own_folder(name, self.folder)[0]

    def delete(self, name: str) -> None:
        """Delete the folder of the latest run of a name, with its checkpoints and logs.

        Raises:
            LocalError: A process trains it now, or it cannot be deleted.
        """
        records.delete(self.own_run(name)[0])


Source = Cluster | ThisMachine
