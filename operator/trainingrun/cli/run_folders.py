"""The folder of a run or a trial that a command names, in its bucket or on this machine."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..api.status import Phase
from ..rendering import names
from .terminal import CliError

if TYPE_CHECKING:
    from trainingrun_runtime.store.bucket import Bucket

CREDENTIALS = (
    "the bucket's credentials are those of this shell's environment, such as AWS_ACCESS_KEY_ID, "
    "and --endpoint is for an endpoint that only pods reach"
)
"""What to try when a bucket refuses, or does not answer."""


@dataclass(frozen=True)
class Place:
    """Where a run's folder is."""

    uri: str
    """A URI, or a path of this machine."""
    endpoint: str | None = None
    """URL of an S3-compatible service."""
    region: str | None = None
    """Region of the bucket."""
    name: str | None = None
    """Of the TrainingRun; none: the folder itself is named."""
    trial: int | None = None
    """Number of the trial, of a sweep; none: the best one."""
    needed: frozenset[tuple[str, int]] = frozenset()
    """Checkpoints from which other runs of the namespace begin: their folder and step."""

    def needed_steps(self, folder: str) -> frozenset[int]:
        """Steps of the checkpoints in a folder from which other runs begin."""
        return frozenset(step for uri, step in self.needed if uri == folder)


def local(name: str, folder: Path | None) -> Place:
    """The latest run of that name on this machine, as `run --local` keeps it."""
    return Place(str(folder or Path("trainingrun-local") / name), name=name)


def in_cluster(run: Mapping[str, Any], others: list[dict[str, Any]], endpoint: str | None) -> Place:
    """The folder of a TrainingRun.

    Args:
        run: As the API server has it.
        others: The TrainingRuns of its namespace.
        endpoint: URL of the bucket's service as this machine reaches it; default: the run's.

    Raises:
        CliError: It is a folder of the pods.
    """
    storage, metadata = run["spec"]["storage"], run["metadata"]
    if storage["uri"].startswith("file:"):
        raise CliError(
            f"storage.uri is {storage['uri']}, a folder of the pods that this machine does not have"
        )
    uri = names.folder_below(storage["uri"], metadata["name"], metadata["uid"])
    return Place(
        uri,
        endpoint or storage.get("endpoint"),
        storage.get("region"),
        metadata["name"],
        needed=frozenset(_needed(uri, metadata["name"], others)),
    )


@contextlib.contextmanager
def opened(place: Place) -> Iterator["Bucket"]:
    """The folder; what the bucket refuses meanwhile ends the command with a sentence.

    Of a sweep it is that of a trial; which one that is is said where the command does not name it.

    Raises:
        CliError: There is no run or no such trial in it, or the bucket does not answer.
    """
    try:
        from trainingrun_runtime.store.bucket import StorageError
        from trainingrun_runtime.sweep.run_folder import NoRun, NoTrial, open_folder, open_trial
    except ModuleNotFoundError as error:
        raise not_installed(error) from None
    try:
        bucket = open_folder(place.uri, place.endpoint, place.region)
        folder = bucket.root.rpartition("/")[2]
        if place.name is not None and not folder.startswith(f"{place.name}-"):
            raise CliError(f"the latest run in {place.uri} is {folder}, not {place.name}")
        trial = open_trial(bucket, place.trial)
        if trial is not None and place.trial is None:
            typer.echo(
                f"Trial {trial.number} of the {len(trial.sweep.trials)} of this sweep, the best "
                "one so far; --trial names another one.",
                err=True,
            )
        yield trial.bucket if trial is not None else bucket
    except NoTrial as error:
        raise CliError(f"{error}{' with --trial' if place.trial is None else ''}") from None
    except NoRun as error:
        if place.name is None or "://" not in place.uri:
            raise CliError(str(error)) from None
        raise CliError(
            f"there is nothing in {place.uri} yet: {place.name} has not begun to train"
        ) from None
    except StorageError as error:
        raise CliError(f"{error} ({CREDENTIALS})") from None


def not_installed(error: ModuleNotFoundError) -> CliError:
    """What to say where a package of the extra `cli` is missing."""
    return CliError(f"{error.name} is not installed here; install trainingrun[cli]")


def _needed(uri: str, name: str, others: list[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    """Checkpoints that other runs name and have not replaced by one of their own.

    Args:
        uri: The folder of this run.
        name: Of this run.
        others: The TrainingRuns of its namespace.
    """
    for run in others:
        source = run["spec"]["storage"].get("restoreFrom") or {}
        status = run.get("status") or {}
        ended = status.get("phase") in (Phase.SUCCEEDED, Phase.FAILED)
        if ended or status.get("checkpoint"):
            continue
        found = (status.get("restoredFrom") or {}).get("uri") or source.get("uri")
        if found is None and source.get("run") == name:
            found = uri
        restored = (status.get("restoredFrom") or {}).get("step")
        for step in (source.get("step"), restored):
            if found is not None and step is not None:
                yield found.rstrip("/"), step
