"""The folder of a run that somebody names: as a URI, or as a path on this machine.

Of a sweep it is that of one of its trials.
"""

import json
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from trainingrun_protocol.progress import SweepTable

from ..store import lease
from ..store.bucket import Bucket
from . import record

_LATEST = "latest.json"
"""Beside the folders of local runs: which of them is the latest one."""


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


def open_folder(uri: str | Path, endpoint: str | None = None, region: str | None = None) -> Bucket:
    """Open the folder of a run.

    Args:
        uri: The run's folder, such as `s3://runs/demo/digits-1a2b3c4d`, or a path on this machine;
            of the folder of a local run, such as `trainingrun-local/digits`, its latest one.
        endpoint: URL of an S3-compatible service. Default: $AWS_ENDPOINT_URL.
        region: Region of the bucket.

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
        raise NoRun(
            f"there is no run in {bucket.root}; name a run's own folder, such as "
            "s3://runs/demo/digits-1a2b3c4d: status.checkpoint.uri begins with it"
        )
    return bucket


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


def _latest(root: Path) -> Path:
    """The folder of the latest local run in this one; itself where it holds no runs."""
    try:
        uid = str(json.loads((root / _LATEST).read_text())["uid"])
    except (OSError, ValueError, KeyError, TypeError):
        return root
    return next(iter(root.glob(f"*-{uid[:8]}")), root)
