"""Where the runs are that a command shows: in a cluster, or in folders of this machine.

Both give a run as the API server does, so each command is one view of it.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..api.status import Phase
from ..local import records
from ..local.folder import all_roots, latest, own_folder
from . import following
from .common import ENDED, Context, Folder, Local, Namespace, connect
from .errors import one_sentence

if TYPE_CHECKING:
    from .kube import Kube


@dataclass(frozen=True)
class Cluster:
    """The runs of a cluster."""

    namespace: Namespace = None
    context: Context = None

    @functools.cached_property
    def kube(self) -> "Kube":
        """The cluster itself, which is not needed to read a bucket."""
        return connect(self.namespace, self.context)

    def where(self, everywhere: bool) -> str:
        """Where `runs` looks, in words."""
        return "any namespace" if everywhere else f"namespace {self.kube.namespace}"

    def runs(self, everywhere: bool) -> list[dict[str, Any]]:
        """The runs of the namespace, or of all of them."""
        return self.kube.runs(everywhere)

    def run(self, name: str) -> dict[str, Any]:
        """One run.

        Raises:
            CliError: There is none of that name.
        """
        return self.kube.run(name)

    def followed(self, name: str) -> following.Followed:
        """The same, to be followed; one that is suspended goes on once somebody resumes it."""
        ends = frozenset((*ENDED, Phase.DELETING))
        return following.Followed(lambda: self.kube.run(name), ends)


@dataclass(frozen=True)
class ThisMachine:
    """The runs that `trainingrun run --local` has trained."""

    folder: Folder = None

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
        return latest(name, self.folder)

    def followed(self, name: str) -> following.Followed:
        """The same, to be followed."""
        self.run(name)
        return following.of_folder(self.own_folder(name))

    def own_folder(self, name: str) -> Path:
        """The folder of the latest run of a name."""
        return own_folder(name, self.folder)


Source = Cluster | ThisMachine


def source_of(
    namespace: Namespace = None,
    local: Local = False,
    folder: Folder = None,
    context: Context = None,
) -> Source:
    """Where a command looks for runs."""
    return ThisMachine(folder) if local or folder is not None else Cluster(namespace, context)


def taking(make: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator of commands: what `make` returns is the first argument of the command.

    On the command line are the parameters of `make` instead, after the command's own. Whatever
    goes wrong in either ends the command with a sentence.
    """
    wanted = inspect.signature(make).parameters

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        _, *own = inspect.signature(command).parameters.values()

        @functools.wraps(command)
        def with_options(**given: Any) -> Any:
            with one_sentence():
                return command(make(**{each: given.pop(each) for each in wanted}), **given)

        parameters = sorted(
            [*own, *wanted.values()], key=lambda each: each.default is not inspect.Parameter.empty
        )
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {each.name: each.annotation for each in parameters}
        del with_options.__wrapped__  # typer reads the signature of what is wrapped
        return with_options

    return decorate
