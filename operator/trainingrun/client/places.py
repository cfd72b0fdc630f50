"""Where a run keeps what it makes: its folder in a bucket, or on this machine."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..api.errors import RunError
from ..local import records
from ..rendering import names
from ..rendering.defaults import names_storage
from .errors import NotBegunError, bucket_access
from .sources import ENDED, Source, ThisMachine

if TYPE_CHECKING:
    from trainingrun_runtime.store.bucket import Bucket
    from trainingrun_runtime.store.manifest import Manifest

LOG = logging.getLogger("trainingrun")
"""Where the client says what is worth knowing beside what it returns."""

Say = Callable[[str], None]
"""Takes a sentence that is worth knowing beside what was asked for."""


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
    run: Mapping[str, Any] | None = None
    """The TrainingRun, where more than its folder is known."""
    request_stacks: Callable[[], None] | None = None
    """Has the stacks of all ranks kept now; none: it is no run of a cluster, or a sweep."""


def folder_uri(run: Mapping[str, Any]) -> str:
    """URI of the folder of a TrainingRun of a cluster.

    Raises:
        RunError: It is not known yet.
    """
    if not names_storage(run):
        raise RunError(
            f"{run['metadata']['name']} has no storage.uri until it begins, with that of "
            "TrainingDefaults"
        )
    return names.folder_of(run)


def in_cluster(
    run: Mapping[str, Any], others: list[dict[str, Any]], endpoint: str | None, trial: int | None
) -> Place:
    """The folder of a TrainingRun; `others` are those of its namespace, where `needed` is used.

    Raises:
        RunError: It is a folder of the pods, or not known yet.
    """
    uri, storage, metadata = folder_uri(run), run["spec"]["storage"], run["metadata"]
    if storage["uri"].startswith("file:"):
        raise RunError(
            f"storage.uri is {storage['uri']}, a folder of the pods that this machine does not have"
        )
    return Place(
        uri,
        endpoint or storage.get("endpoint"),
        storage.get("region"),
        metadata["name"],
        trial,
        frozenset(needed(uri, metadata["name"], others)),
        run,
    )


def on_this_machine(source: ThisMachine, name: str, trial: int | None) -> Place:
    """The folder of the latest local run of a name."""
    own = source.own_folder(name)
    return Place(str(own), name=name, trial=trial, run=records.read(own))


def place_of_run(source: Source, name: str, trial: int | None, endpoint: str | None) -> Place:
    """The folder of a run of a cluster or of this machine.

    Raises:
        RunError: There is no such run, or its folder is one of the pods.
    """
    if isinstance(source, ThisMachine):
        return on_this_machine(source, name, trial)
    return in_cluster(source.run(name), [], endpoint, trial)


def needed(uri: str, name: str, others: list[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    """Checkpoints that other runs name and have not replaced by one of their own.

    `uri` is the folder of this run, and `name` its name.
    """
    for run in others:
        source = (run["spec"].get("storage") or {}).get("restoreFrom") or {}
        status = run.get("status") or {}
        ended = status.get("phase") in ENDED
        if ended or status.get("checkpoint"):
            continue
        found = (status.get("restoredFrom") or {}).get("uri") or source.get("uri")
        if found is None and source.get("run") == name:
            found = uri
        restored = (status.get("restoredFrom") or {}).get("step")
        for step in (source.get("step"), restored):
            if found is not None and step is not None:
                yield found.rstrip("/"), step


def events(source: Source, name: str) -> list[dict[str, Any]]:
    """The Events of a run that the API server still has; of a local one what its drivers recorded.

    In the order in which they were last seen.

    Raises:
        RunError: There is no such run, or they cannot be read.
    """
    run = source.run(name)
    if not isinstance(source, ThisMachine):
        return sorted(source.kube.events(run), key=last_seen)
    with folder_of(on_this_machine(source, name, None)) as bucket:
        from trainingrun_runtime.report_page import history
        from trainingrun_runtime.store import last_progress

        return [
            {
                "lastTimestamp": datetime.fromtimestamp(event.time, UTC).isoformat(),
                "type": "Warning" if event.lost else "Normal",
                "reason": event.kind,
                "message": event.message,
            }
            for event in history.events_of(last_progress.drivers(bucket))
        ]


def last_seen(event: Mapping[str, Any]) -> str:
    """When an Event was last seen, as the API server writes times."""
    seen = event.get("lastTimestamp") or event.get("eventTime")
    return str(seen or event["metadata"]["creationTimestamp"])


@contextlib.contextmanager
def folder_of(place: Place) -> Iterator["Bucket"]:
    """The folder of the run.

    Raises:
        NotBegunError: There is none yet.
        RunError: There is none, or the bucket cannot be read.
    """
    with bucket_access():
        from trainingrun_runtime.results import NoRun, NoTrial, open_folder

        try:
            bucket = open_folder(place.uri, place.endpoint, place.region)
            folder = bucket.root.rpartition("/")[2]
            if place.name is not None and not folder.startswith(f"{place.name}-"):
                raise RunError(f"the latest run in {place.uri} is {folder}, not {place.name}")
            yield bucket
        except NoTrial as error:
            raise RunError(f"{error}{' with --trial' if place.trial is None else ''}") from None
        except NoRun as error:
            recorded = "://" not in place.uri and records.read(Path(place.uri)) is not None
            if not recorded and (place.name is None or "://" not in place.uri):
                raise RunError(str(error)) from None
            raise NotBegunError(
                f"there is nothing in {place.uri} yet: {place.name} has not begun to train"
            ) from None


@contextlib.contextmanager
def opened(place: Place, say: Say) -> Iterator["Bucket"]:
    """The folder of the run, of a sweep that of a trial; which one is said where none is named.

    Raises:
        RunError: As `folder_of`.
    """
    with folder_of(place) as bucket:
        from trainingrun_runtime.results import open_trial

        trial = open_trial(bucket, place.trial)
        if trial is not None and place.trial is None:
            say(
                f"Trial {trial.number} of the {len(trial.sweep.trials)} of this sweep, the "
                "best one so far; --trial names another one."
            )
        yield trial.bucket if trial is not None else bucket


def committed(bucket: "Bucket", say: Say) -> "list[Manifest]":
    """The checkpoints, oldest first; what cannot be read of them is said."""
    from trainingrun_runtime.store import manifest

    found = []
    for key, reading in manifest.read_all(bucket):
        if isinstance(reading, str):
            say(f"{key} cannot be read: {reading}")
        else:
            found.append(reading)
    return found


def name_of(root: str) -> str:
    """The name of a run's folder, with the trial where it is one of a sweep's."""
    rest, _, name = root.rpartition("/")
    run, _, between = rest.rpartition("/")
    return f"{run.rpartition('/')[2]}-trial-{name}" if between == "trials" else name
