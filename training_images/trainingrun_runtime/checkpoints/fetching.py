"""Each rank downloads its share of a checkpoint and verifies it, before anything is restored.

All ranks together read every file, so a damaged one is found before training code sees it. What the
ranks of a pod restore is read from the bucket once: files that all ranks need are downloaded by one
of them, and the others map the same files.
"""

import re
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..store import verification
from ..store.bucket import Bucket
from ..store.manifest import Manifest
from ..store.storage_errors import DamagedError
from ..store.storage_retry import StorageRetry
from .tensor_files import header_length, header_of

STATE_FILE = "session.pt"
"""Only a session's checkpoint has it."""
_FIRST = 2**17
"""Bytes that are read first of a file whose header is wanted: most headers are shorter."""
_FILES_AT_ONCE = 4
"""Files downloaded at once; each is read with a few requests ahead of its own."""
_RANDOM = re.compile(r"random-([0-9]{1,7})\.pt")
_OF_ONE_RANK = re.compile(rf"{_RANDOM.pattern}|rank-([0-9]{{1,7}})\.safetensors")


class Share(NamedTuple):
    """What one rank downloads of a checkpoint, by the files' names."""

    kept: list[str]
    """For its own restore."""
    verified: list[str]
    """Read and not kept."""
    common: Collection[str] = ()
    """For the restore of every rank."""


def share_of(files: Collection[str], rank: int, world_size: int, former: int) -> Share:
    """What one rank downloads; all ranks together have every file.

    Args:
        files: names of the checkpoint's files.
        rank: of this process.
        world_size: how many ranks there are.
        former: how many ranks the checkpoint was made by.
    """
    if STATE_FILE not in files:
        # Code without a session reads it in its own way, or not at all.
        return Share([], sorted(files)[rank::world_size])
    takers = {name: _taker(name, world_size, former) for name in sorted(files)}
    kept, common = (
        [name for name, taker in takers.items() if taker == wanted] for wanted in (rank, None)
    )
    return Share(kept, [], common)


def _taker(name: str, world_size: int, former: int) -> int | None:
    """The rank that needs the file most; None: all of them do."""
    match = _OF_ONE_RANK.fullmatch(name)
    if match is None:
        return None
    of = int(match[1] or match[2])
    if match[2] and of < former:
        return of * world_size // former  # parts of neighbors are neighbors
    return of % world_size


def small_files(names: Collection[str]) -> list[str]:
    """Those of a session's files that hold what is no tensor."""
    return [name for name in names if name == STATE_FILE or _RANDOM.fullmatch(name)]


class Fetched:
    """The files of a checkpoint that this rank has downloaded; they are gone after `close`.

    Args:
        bucket: the run's folder.
        manifest: of the checkpoint.
    """

    def __init__(self, bucket: Bucket, manifest: Manifest) -> None:
        self._bucket, self.manifest = bucket, manifest
        self._retry = StorageRetry(lambda message: None)
        self._temporary = tempfile.TemporaryDirectory(prefix="restore-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        """Where they are."""

    def fetch(self, share: Share) -> str | None:
        """Download and verify what is not there yet.

        Returns:
            None if all of it is as committed, else a sentence that names the first wrong file.

        Raises:
            StorageError: The store did not answer, so it is unknown.
        """

        def wrong(name: str) -> str | None:
            target = self.folder / name if name in kept else None
            if target is not None and target.exists():
                return None
            return verification.wrong_content(self._bucket, self.manifest, name, target)

        kept = {*share.kept, *share.common}
        # The largest first: then none of them is left over for the end.
        names = sorted({*kept, *share.verified}, key=lambda n: -self.manifest.files[n].size)
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            return next((why for why in pool.map(wrong, names) if why), None)

    def take_over(self, folder: Path, names: Collection[str]) -> None:
        """Have files that another rank of this pod has downloaded into its folder, and verified.

        They stay when that rank ends. What is not there is downloaded when it is asked for.
        """
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(OSError):
                path.hardlink_to(folder / name)

    def names(self) -> Collection[str]:
        """Of all files of the checkpoint."""
        return self.manifest.files

    def path(self, name: str) -> Path:
        """Where one of them is on this machine; downloaded and verified where it was not.

        Raises:
            DamagedError: it is no longer what was committed.
            StorageError: the store does not answer.
        """
        target = self.folder / name
        if not target.exists():
            why = self._retry(
                lambda: verification.wrong_content(self._bucket, self.manifest, name, target)
            )
            if why is not None:
                raise DamagedError(f"{why}: it was changed while it was restored")
        return target

    def header(self, name: str) -> bytes:
        """The header of a file of tensors; verified only if the file is here."""
        path = self.folder / name
        if path.exists():
            with path.open("rb") as file:
                return header_of(file)
        key, size = f"{self.manifest.path}/{name}", self.manifest.files[name].size
        first = self._retry(lambda: self._bucket.head(key, min(size, _FIRST)))
        length = header_length(first)
        if length > len(first):
            first = self._retry(lambda: self._bucket.head(key, min(size, length)))
        return first[:length]

    def close(self) -> None:
        """Remove them."""
        self._temporary.cleanup()
