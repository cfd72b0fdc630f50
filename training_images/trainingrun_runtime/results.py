"""What a run has left in its folder: metrics, checkpoints, result, and weights for inference.

from trainingrun_runtime import results

found = results.open("s3://runs/demo/digits-1a2b3c4d")
found.metrics.plot(x="step", y="loss")
results.load(found.best_checkpoint.uri, model)
"""

import importlib
import json
import re
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from trainingrun_protocol.progress import ProgressResult, SweepTable

from .checkpoints.downloads import Fetched
from .store import lease, manifest, retention, run_result, run_settings, verification
from .store.bucket import Bucket
from .store.manifest import CHECKPOINTS, Manifest
from .store.storage_errors import StorageError
from .sweep import record

__all__ = ["Checkpoint", "NoRun", "Results", "load", "open"]

_LATEST = "latest.json"
"""Beside the folders of local runs: which of them is the latest one."""
_RUN_FOLDER = re.compile(r"[a-z0-9-]+-[0-9a-f]{8}")
_CHECKPOINT = re.compile(rf"(.+)/({CHECKPOINTS}/\d{{4,}}-\d{{6,}}/.+)")
"""A run's folder, and in it the folder of a checkpoint by attempt and fencing token: the path above
may have a folder of that name, too."""
_SHOWN = 10
"""Folders of runs that an error names."""


class NoRun(ValueError):
    """There is no run in a folder. The text is one sentence for the user."""


class NoTrial(NoRun):
    """A sweep has no such trial, or none is chosen. The text is one sentence for the user."""


class TrialFolder(NamedTuple):
    """The folder of a trial of a sweep."""

    bucket: Bucket
    """Laid out like that of a run."""
    number: int
    """Of the trial."""
    sweep: SweepTable
    """All trials."""


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint."""

    uri: str
    """Of its folder; `load` takes it."""
    step: int
    """Steps done when it was made."""
    metrics: dict[str, Any]
    """Of its step."""
    time: float
    """Unix time of its commit, in seconds."""
    attempt: int
    """Number of the attempt that made it."""
    world_size: int
    """Workers that made it."""
    size: int
    """Bytes of its files."""


class Results:
    """What there is in a run's folder. Each property is read once, when it is first asked for."""

    def __init__(self, bucket: Bucket, trial: TrialFolder | None = None) -> None:
        self._bucket, self._trial = bucket, trial

    @property
    def uri(self) -> str:
        """The run's folder, or that of the trial."""
        return self._bucket.root

    @property
    def trial(self) -> int | None:
        """Number of the trial of a sweep that was opened; none: the run is no sweep."""
        return self._trial.number if self._trial is not None else None

    @property
    def sweep(self) -> SweepTable | None:
        """All trials, and which is the best, as they were when it was opened; none: no sweep."""
        return self._trial.sweep if self._trial is not None else None

    @cached_property
    def metrics(self) -> Any:
        """What was reported: a pandas DataFrame, without pandas a pyarrow Table; a row for a step.

        Columns `step`, `time` and `attempt`, then the metrics. Of steps that were done again after
        a loss it has those that count. A run under way writes it at each checkpoint, and every
        30 s.
        """
        from .store import metrics_table

        table = metrics_table.read(self._bucket)
        try:
            importlib.import_module("pandas")  # `to_pandas` needs it
        except ModuleNotFoundError:
            return table
        return table.to_pandas()

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that there are, oldest first; whether they are intact is not known."""
        return [_described(self._bucket, found) for found in self._committed]

    @cached_property
    def best_checkpoint(self) -> Checkpoint | None:
        """The best one by the run's `checkpoints.best`; none where that is not set."""
        best = retention.best_known(self._committed)
        return _described(self._bucket, best) if best else None

    @cached_property
    def result(self) -> ProgressResult | None:
        """Final metrics, and URIs of the last and the best checkpoint; none: it is not done."""
        return run_result.read(self._bucket)

    @cached_property
    def config(self) -> dict[str, str] | None:
        """`training.config` of the newest driver, without secrets; none: it is not known.

        The values are texts, those that were none as JSON; nested names are joined by dots.
        """
        found = run_settings.newest(self._bucket)
        return found.config if found is not None else None

    @cached_property
    def _committed(self) -> list[Manifest]:
        return manifest.committed(self._bucket)


def open(  # noqa: A001 - as `results.open`
    uri: str | Path,
    endpoint: str | None = None,
    region: str | None = None,
    *,
    trial: int | None = None,
) -> Results:
    """What a run has left; also of one that is under way. Of a sweep it is what a trial has left.

    Args:
        uri: The run's folder, such as `s3://runs/demo/digits-1a2b3c4d`, or a path on this machine.
        endpoint: URL of an S3-compatible service. Default: $AWS_ENDPOINT_URL.
        region: Region of the bucket. Default: $AWS_REGION and the client's own rules.
        trial: Number of the trial of a sweep. Default: the best one.

    Raises:
        NoRun: There is no run in that folder, no such trial, or no best one yet.
        StorageError: The store did not answer.
    """
    return Results(*_of_trial(open_folder(uri, endpoint, region), trial))


def load(
    uri: str | Path,
    model: Any,
    *,
    name: str = "model",
    endpoint: str | None = None,
    region: str | None = None,
    trial: int | None = None,
) -> Checkpoint:
    """Load the weights of a checkpoint that a `Session` has made; for inference.

    Each file that is read is verified against the digest that was committed, and nothing in it is
    executed. A model that was trained in parts, on any mesh, is put together.

    Args:
        uri: Of a checkpoint, or a run's folder: then the newest intact checkpoint; of a sweep that
            of a trial.
        model: A model as the training made it, or another object of the session.
        name: Under which the session has it: `Session(model=...)`.
        endpoint: URL of an S3-compatible service. Default: $AWS_ENDPOINT_URL.
        region: Region of the bucket. Default: $AWS_REGION and the client's own rules.
        trial: Number of the trial of a sweep. Default: the best one.

    Returns:
        The checkpoint.

    Raises:
        NoRun: There is no run in that folder, no such trial, or no such checkpoint.
        DamagedError: A file is not as it was committed.
        ValueError: The checkpoint has no such object, or it does not fit.
        StorageError: The store did not answer.
    """
    from .checkpoints import snapshot  # PyTorch
    from .checkpoints.stateful_objects import bare

    named = _CHECKPOINT.fullmatch(str(uri).rstrip("/"))
    bucket = open_folder(named[1] if named else uri, endpoint, region)
    if named:
        found = _found(bucket, named[2])
    else:
        bucket = _of_trial(bucket, trial)[0]
        found = _newest(bucket)
    with closing(Fetched(bucket, found)) as files:
        snapshot.restore_alone(files, name, bare(model))
    return _described(bucket, found)


def open_folder(uri: str | Path, endpoint: str | None = None, region: str | None = None) -> Bucket:
    """Open the folder of a run that somebody names.

    Args:
        uri: As for `open`; of the folder of local runs, such as `trainingrun-local/digits`, it is
            the latest one.
        endpoint: As for `open`.
        region: As for `open`.

    Raises:
        NoRun: There is none.
        StorageError: The store did not answer, or the URI cannot be used.
    """
    text = str(uri)
    if "://" not in text:
        text = Path(text).absolute().as_uri()
    parts = urlsplit(text)
    if parts.scheme == "file":
        folder = _latest(Path(unquote(parts.path)))
        if not folder.is_dir():  # `Bucket.open` would make it
            raise NoRun(f"there is no folder {folder}; name the folder of a run")
        text = folder.as_uri()
    bucket = Bucket.open(text, endpoint, region)
    if not bucket.list(lease.FOLDER):
        raise NoRun(f"there is no run in {bucket.root}; {_what_to_name(bucket)}")
    return bucket


def _what_to_name(bucket: Bucket) -> str:
    """What to name instead; once a run's cluster is gone, the bucket alone knows its folder."""
    runs = []
    with suppress(StorageError):  # who may read a run's folder may not list those beside it
        runs = [name for name in bucket.folders() if _RUN_FOLDER.fullmatch(name)]
    if not runs:
        return (
            "name a run's own folder, such as s3://runs/demo/digits-1a2b3c4d: "
            "status.checkpoint.uri begins with it"
        )
    rest = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
    return f"name a run's own folder in it: {', '.join(runs[:_SHOWN])}{rest}"


def open_trial(run: Bucket, number: int | None = None) -> TrialFolder | None:
    """Open the folder of a trial, if a run is a sweep; None: it is none.

    Args:
        run: The run's folder.
        number: Of the trial; default: the best one.

    Raises:
        NoTrial: There is no such trial, it has not begun, or there is no best one yet.
        StorageError: The store did not answer.
    """
    found = record.read(run)
    if found is None:
        if number is not None:
            raise NoTrial(
                f"{run.root} is no sweep, so it has no trial {number}; leave the trial out"
            )
        return None
    last = len(found.trials)
    wanted = found.best if number is None else number
    if wanted is None:
        raise NoTrial(
            f"{run.root} is a sweep, and no trial of it has reported {found.metric!r} yet; name a "
            f"trial, from 1 to {last}"
        )
    trial = next((one for one in found.trials if one.number == wanted), None)
    if trial is None:
        raise NoTrial(f"the sweep {run.root} has no trial {wanted}; name one from 1 to {last}")
    # A leg of a trial that waits for others has what it begins from, until it has begun.
    places = [(trial.number, trial.leg)]
    places += [(trial.origin.number, trial.origin.leg)] if trial.origin is not None else []
    for place in places:
        folder = record.folder(*place)
        if run.list(f"{folder}/{lease.FOLDER}"):
            bucket = Bucket.open(run.uri(folder), run.endpoint, run.region)
            return TrialFolder(bucket, trial.number, found.table())
    raise NoTrial(
        f"trial {wanted} of the sweep {run.root} has not begun to train; name another one, from 1 "
        f"to {last}"
    )


def _of_trial(run: Bucket, trial: int | None) -> tuple[Bucket, TrialFolder | None]:
    """The folder of a trial, if the run is a sweep, else that of the run."""
    found = open_trial(run, trial)
    return (found.bucket, found) if found is not None else (run, None)


def _found(bucket: Bucket, path: str) -> Manifest:
    committed = manifest.committed(bucket)
    for one in reversed(committed):
        if one.path == path:
            return one
    there = ", ".join(str(one.step) for one in committed) or "none"
    raise NoRun(
        f"there is no checkpoint {bucket.uri(path)}; name one that is there (steps: {there})"
    )


def _newest(bucket: Bucket) -> Manifest:
    found, skipped = verification.newest_intact(bucket)
    if found is None:
        why = f": {skipped[0].reason}" if skipped else ""
        raise NoRun(f"there is no intact checkpoint in {bucket.root}{why}; name another run")
    return found


def _described(bucket: Bucket, found: Manifest) -> Checkpoint:
    return Checkpoint(
        uri=bucket.uri(found.path),
        step=found.step,
        metrics=found.metrics,
        time=found.time,
        attempt=found.attempt,
        world_size=found.world_size,
        size=sum(file.size for file in found.files.values()),
    )


def _latest(root: Path) -> Path:
    """The folder of the latest local run in this one; itself where it holds no runs."""
    try:
        uid = str(json.loads((root / _LATEST).read_text())["uid"])
    except (OSError, ValueError, KeyError, TypeError):
        return root
    return next(iter(root.glob(f"*-{uid[:8]}")), root)
