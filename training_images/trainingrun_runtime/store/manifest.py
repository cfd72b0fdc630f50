"""Manifests: a checkpoint is committed by its manifest, and verified against it (`verification`).

A checkpoint is a folder of files that several machines upload concurrently; the folder does not
show whether it is complete. The manifest is written after the last file and lists every file with
its size and SHA-256; a folder without a manifest is not a checkpoint.
"""

import hashlib
import logging
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator
from pydantic.dataclasses import dataclass

from trainingrun_protocol.wire import Wire

from . import late_metrics
from .bucket import Bucket
from .metric_values import printable_metrics
from .storage_errors import UnusableError

FOLDER = "manifests"
"""Where manifests are, below the run's folder."""
CHECKPOINTS = "checkpoints"
"""Where the checkpoints themselves are, below the run's folder."""
LARGEST = 2**24
"""Bytes of a manifest; a larger object is not read. Enough for 100,000 files."""
DIGEST_FOLDER = ".trainingrun"
"""Folder inside a checkpoint with one digest file per rank, of what it has on this machine."""
_PIECE = 2**22
"""Bytes that are read at once: between two pieces a thread that trains may have to wait."""

log = logging.getLogger(__name__)


def _inside(path: str) -> str:
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path!r} leads out of the run's folder")
    return path


def _below_checkpoints(path: str) -> str:
    if not path.startswith(f"{CHECKPOINTS}/"):
        raise ValueError(f"{path!r} is not below {CHECKPOINTS}/")
    return path


RelativePath = Annotated[str, AfterValidator(_inside)]
CheckpointPath = Annotated[RelativePath, AfterValidator(_below_checkpoints)]


@dataclass(frozen=True)
class FileDigest:
    """What one file of a checkpoint must be."""

    size: int
    """Bytes."""
    sha256: str
    """SHA-256 of the content, as 64 hexadecimal digits."""


class Manifest(Wire):
    """A committed checkpoint."""

    version: Literal[1] = 1
    """Of this format. A newer one is not understood and its checkpoint is skipped."""
    path: CheckpointPath
    """The checkpoint's folder, relative to the run's; below `checkpoints/`."""
    step: int
    """Steps done when it was made."""
    world_size: int
    """Workers that made it."""
    attempt: int
    """Number of the attempt."""
    fencing_token: int
    """Of the lease under which it was made."""
    index: int
    """1, 2, 3 … within the fencing token."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    """As reported with it or later; NaN and infinity as strings."""
    files: dict[RelativePath, FileDigest]
    """Every file, relative to `path`."""
    time: float
    """Unix time of the commit, in seconds."""
    group: int = 0
    """Number of the worker group that made it, within the fencing token; 0: unknown."""
    best_metric: str | None = None
    """The metric of `checkpoints.best` at that time."""
    best_order: Literal["min", "max"] = "min"
    """Whether its smallest or its largest value is the best."""

    @field_validator("files")
    @classmethod
    def _can_lie_in_one_folder(cls, files: dict[str, FileDigest]) -> dict[str, FileDigest]:
        for name in files:
            folder = name
            while folder := folder.rpartition("/")[0]:
                if folder in files:
                    raise ValueError(f"{folder!r} cannot be a file and the folder of {name!r}")
        return files

    @field_validator("metrics")
    @classmethod
    def _printable(cls, metrics: dict[str, Any]) -> dict[str, Any]:
        return printable_metrics(metrics)

    @property
    def key(self) -> str:
        """Its own place in the bucket."""
        return f"{FOLDER}/{self.fencing_token:06d}-{self.index:06d}.json"

    @property
    def name(self) -> str:
        """Of its key, such as `000003-000007`."""
        return name_of(self.key)

    @property
    def sort_key(self) -> tuple[int, int]:
        """Newer is larger. Not the step: after a fallback to an older checkpoint the steps begin
        again from there, and what the newest driver made is what counts.
        """
        return self.fencing_token, self.index

    def number(self, metric: str) -> float | None:
        """A reported metric, if it is a finite number."""
        value = self.metrics.get(metric)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if math.isfinite(value) else None


def name_of(key: str) -> str:
    """The name of a manifest, from its place in the bucket."""
    return key.rpartition("/")[2].removesuffix(".json")


def digest_file(rank: int) -> str:
    """Name of the file in a checkpoint with the digests of what one rank has uploaded."""
    return f"{DIGEST_FOLDER}/rank-{rank}.json"


def digest_folder(path: str | Path) -> dict[str, FileDigest]:
    """Digests of all files below a local folder, by their path relative to it."""
    root = Path(path)
    found = {}
    for file in sorted(root.rglob("*")):
        if file.is_file():
            found[file.relative_to(root).as_posix()] = FileDigest(
                file.stat().st_size, _sha256(file)
            )
    return found


def _sha256(file: Path) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_PIECE))
    with file.open("rb", buffering=0) as content:
        while count := content.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def commit(bucket: Bucket, manifest: Manifest) -> None:
    """Write a checkpoint's manifest. Call it after the last of its files is in the bucket.

    Raises:
        StorageError: It could not be written, or another manifest has this fencing token and
            index, which means that two drivers hold the same fencing token.
    """
    content = manifest.model_dump_json(by_alias=True).encode()
    if not bucket.create(manifest.key, content):
        raise UnusableError(f"{bucket.uri(manifest.key)} is taken: another driver writes here too")


def committed(bucket: Bucket) -> list[Manifest]:
    """All committed checkpoints, oldest first; manifests that cannot be read are left out."""
    return [found for _, found in read_all(bucket) if isinstance(found, Manifest)]


def read_all(bucket: Bucket) -> list[tuple[str, Manifest | str]]:
    """Every manifest by key, oldest first, or what keeps it from being read, in a sentence.

    Its metrics are those that were reported with the checkpoint and later.
    """
    late = late_metrics.read_all(bucket)
    # Zero-padded numbers sort as they count.
    found: list[tuple[str, Manifest | str]] = []
    for entry in bucket.list(FOLDER):
        if entry.size > LARGEST:
            found.append((entry.key, f"it has {entry.size} bytes, more than a manifest may have"))
            continue
        content = bucket.get(entry.key)
        if content is None:
            continue  # a sweep removed it between the two requests
        try:
            manifest = Manifest.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            found.append((entry.key, str(first["msg"])))
            log.warning("%s cannot be read: %s", bucket.uri(entry.key), first["msg"])
            continue
        if manifest.key != entry.key:
            found.append((entry.key, f"it says that it is {manifest.key}"))
            continue
        metrics = {**manifest.metrics, **late.get(manifest.name, {})}
        found.append((entry.key, manifest.model_copy(update={"metrics": metrics})))
    return found
