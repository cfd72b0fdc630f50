"""Manifests: a checkpoint is committed by its manifest, and verified against it (`verification`).

A checkpoint is a folder of files that several machines upload concurrently; the folder does not
show whether it is complete. The manifest is written after the last file and lists every file with
its size and BLAKE3 digest; a folder without a manifest is not a checkpoint.

A manifest is written once, and an evaluation may end later. What that reports is an object of its
own, `metrics/<manifest>/<fencing token>.json`. The fencing token is that of the driver that wrote
it, which may be a later one than the manifest's: an evaluation is done again after a restart. Of
several, the one with the highest token counts.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from blake3 import blake3
from pydantic import AfterValidator, Field, ValidationError, field_validator
from pydantic.dataclasses import dataclass

from trainingrun_protocol.wire import Wire

from .bucket import Bucket, Entry
from .reported_metrics import number_of, printable_metrics
from .storage_errors import UnusableError

FOLDER = "manifests"
"""Where manifests are, below the run's folder."""
CHECKPOINTS = "checkpoints"
"""Where the checkpoints themselves are, below the run's folder."""
LARGEST = 2**24
"""Bytes of a manifest; a larger object is not read. Enough for 100,000 files."""
DIGEST_FOLDER = ".trainingrun"
"""Folder inside a checkpoint with one digest file per rank, of what it has on this machine."""
METRICS_FOLDER = "metrics"
"""Where metrics are that were reported after their checkpoint, below the run's folder."""
_LARGEST_METRICS = 2**20
"""Bytes of an object with such metrics; a larger one is not read."""
_PIECE = 2**22
"""Bytes that are read at once: between two pieces a thread that trains may have to wait."""
_AT_ONCE = 16
"""Objects that are asked for at once: a run may keep a thousand, and an answer take 30 ms."""

_KEY = re.compile(rf"{FOLDER}/\d{{6,18}}-\d{{6,18}}\.json", re.ASCII)

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
    blake3: str
    """BLAKE3 of the content, as 64 hexadecimal digits, as `b3sum` prints it.

    Not SHA-256: a rank's checkpoint is digested by one core at 6 GB/s instead of 1.8 with the CPU's
    own instructions for SHA-256, and of 0.5 without, as in the hosts of most A100s.
    """
    mtime_ns: int | None = field(default=None, compare=False)
    """When it was changed last, in Unix nanoseconds, where a script may ask for it."""


class OtherVersion(str):
    """What keeps a manifest from being read: it has another version of this format.

    So its checkpoint is not damaged, unlike with any other reason.
    """


class Manifest(Wire):
    """A committed checkpoint."""

    version: Literal[2] = 2
    """Of this format. Another one is not understood, and no run begins at an older checkpoint."""
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
    session: bool | None = None
    """Whether a session made it; none: unknown, and its files' names tell."""
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
        return number_of(self.metrics.get(metric))


def name_of(key: str) -> str:
    """The name of a manifest, from its place in the bucket."""
    return key.rpartition("/")[2].removesuffix(".json")


def token_of(name: str) -> int:
    """The fencing token in the name of a manifest; 0: it has none."""
    digits = name.partition("-")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def digest_file(rank: int) -> str:
    """Name of the file in a checkpoint with the digests of what one rank has uploaded."""
    return f"{DIGEST_FOLDER}/rank-{rank}.json"


def digest_folder(path: str | Path) -> dict[str, FileDigest]:
    """Digests of all files below a local folder, by their path relative to it.

    Those that came with a checkpoint which was downloaded there are left out.
    """
    root = Path(path)
    found = {}
    for file in sorted(root.rglob("*")):
        name = file.relative_to(root).as_posix()
        if file.is_file() and not name.startswith(f"{DIGEST_FOLDER}/"):
            found[name] = digest_file_content(file)
    return found


def digest_file_content(file: Path) -> FileDigest:
    """Digest of one local file."""
    return FileDigest(file.stat().st_size, _digest(file))


def _digest(file: Path) -> str:
    digest, buffer = blake3(), memoryview(bytearray(_PIECE))
    with file.open("rb", buffering=0) as content:
        while count := content.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def commit(bucket: Bucket, manifest: Manifest) -> None:
    """Write a checkpoint's manifest. Call it after the last of its files is in the bucket.

    Raises:
        StorageError: It could not be written, it would be larger than what is read, or another
            manifest is there that has this fencing token and index, which means that two drivers
            hold the same fencing token.
    """
    content = manifest.model_dump_json(by_alias=True).encode()
    if len(content) > LARGEST:
        # Nobody would restore it, and meanwhile a sweep deletes the ones that can be.
        raise UnusableError(
            f"a checkpoint of {len(manifest.files)} files is too large to be listed: its manifest "
            f"has {len(content)} bytes, and {LARGEST} are read; write fewer and larger files, or "
            "with torchrun keep fewer checkpoints in $TRAININGRUN_CHECKPOINT_DIR"
        )
    if not bucket.create(manifest.key, content):
        raise UnusableError(f"{bucket.uri(manifest.key)} is taken: another driver writes here too")


def listed(bucket: Bucket) -> list[Entry]:
    """The objects that are manifests by their names, oldest first; others are left alone."""
    # Zero-padded numbers sort as they count.
    return [entry for entry in bucket.list(FOLDER) if _KEY.fullmatch(entry.key)]


def committed(bucket: Bucket) -> list[Manifest]:
    """All committed checkpoints, oldest first; manifests that cannot be read are left out."""
    return [found for _, found in read_all(bucket) if isinstance(found, Manifest)]


def read_all(bucket: Bucket) -> list[tuple[str, Manifest | str]]:
    """Every manifest by key, oldest first, or what keeps it from being read, in a sentence.

    Its metrics are those that were reported with the checkpoint and later.
    """
    late, entries = _late_metrics(bucket), listed(bucket)
    contents = _contents(bucket, (entry.key for entry in entries if entry.size <= LARGEST))
    found: list[tuple[str, Manifest | str]] = []
    for entry in entries:
        if entry.size > LARGEST:
            found.append((entry.key, f"it has {entry.size} bytes, more than a manifest may have"))
            continue
        content = contents[entry.key]
        if content is None and all(still.key != entry.key for still in listed(bucket)):
            continue  # a sweep removed it between the two requests
        # A store may say once that there is none: an older checkpoint would be restored for it.
        content = bucket.get(entry.key) if content is None else content
        if content is None:
            found.append((entry.key, "it is listed, and the store answers that there is none"))
            continue
        try:
            manifest = Manifest.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            reason = str(first["msg"])
            if first["type"] == "literal_error" and first["loc"] == ("version",):
                reason = OtherVersion(f"it has version {first['input']!r:.20} of its format")
            found.append((entry.key, reason))
            log.warning("%s cannot be read: %s", bucket.uri(entry.key), reason)
            continue
        if manifest.key != entry.key:
            found.append((entry.key, f"it says that it is {manifest.key}"))
            continue
        metrics = {**manifest.metrics, **late.get(manifest.name, {})}
        found.append((entry.key, manifest.model_copy(update={"metrics": metrics})))
    return found


def _contents(bucket: Bucket, keys: Iterable[str]) -> dict[str, bytes | None]:
    """What `Bucket.get` returns for each of these keys."""
    names = list(keys)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(names, pool.map(bucket.get, names), strict=True))


def add_metrics(
    bucket: Bucket, manifest: str, fencing_token: int, metrics: Mapping[str, Any]
) -> None:
    """Add metrics to a committed checkpoint, beside those that this driver has added before.

    Args:
        bucket: The run's folder.
        manifest: Name of its manifest, such as `000003-000007`.
        fencing_token: The caller's.
        metrics: As JSON can carry them.

    Raises:
        StorageError: The store did not answer.
    """
    key = f"{METRICS_FOLDER}/{manifest}/{fencing_token:06d}.json"
    known = _metrics(bucket.get(key), key)
    bucket.put(key, json.dumps({**known, **metrics}, allow_nan=False).encode())


def _late_metrics(bucket: Bucket) -> dict[str, dict[str, Any]]:
    """Metrics by the name of their manifest. What cannot be read is left out."""
    found: dict[str, dict[str, Any]] = {}
    keys = []
    for entry in bucket.list(METRICS_FOLDER):
        if entry.size > _LARGEST_METRICS:
            log.warning("%s has %d bytes; it is not read", bucket.uri(entry.key), entry.size)
        else:
            keys.append(entry.key)
    # Zero-padded tokens sort as they count.
    for key, content in _contents(bucket, keys).items():
        found.setdefault(_name_of_metrics(key), {}).update(_metrics(content, key))
    return found


def delete_metrics(bucket: Bucket, is_gone: Callable[[str], bool]) -> None:
    """Delete the metrics of checkpoints that are gone, by the names of their manifests."""
    bucket.delete(
        entry.key for entry in bucket.list(METRICS_FOLDER) if is_gone(_name_of_metrics(entry.key))
    )


def _name_of_metrics(key: str) -> str:
    return key.removeprefix(f"{METRICS_FOLDER}/").partition("/")[0]


def _metrics(content: bytes | None, key: str) -> dict[str, Any]:
    try:
        document: Any = json.loads(content or b"{}")
    except ValueError as error:
        log.warning("%s cannot be read: %s", key, error)
        return {}
    return printable_metrics(document) if isinstance(document, dict) else {}
