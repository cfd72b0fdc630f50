"""The folder of a run that somebody names: as a URI, or as a path on this machine."""

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .checkpoints.bucket import Bucket
from .coordination import lease

_LATEST = "latest.json"
"""Beside the folders of local runs: which of them is the latest one."""


class NoRun(ValueError):
    """There is no run in a folder. The text is one sentence for the user."""


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


def _latest(root: Path) -> Path:
    """The folder of the latest local run in this one; itself where it holds no runs."""
    try:
        uid = str(json.loads((root / _LATEST).read_text())["uid"])
    except (OSError, ValueError, KeyError, TypeError):
        return root
    return next(iter(root.glob(f"*-{uid[:8]}")), root)
