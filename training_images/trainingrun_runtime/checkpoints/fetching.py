"""Each rank downloads its share of a checkpoint and verifies it, before anything is restored.

All ranks together read every file, so a damaged one is found before training code sees it, and what
a rank restores is read from the bucket once.
"""

import re
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from . import verification
from .bucket import Bucket
from .manifest import Manifest
from .memory_files import MemoryFiles, fits

STATE_FILE = "state.pt"
"""Only a session's checkpoint has it."""
SHARDS = "shard-"
"""Names of files with the parts of sharded tensors begin so."""
_FILES_AT_ONCE = 4
"""Files downloaded at once; each is read with a few requests ahead of its own."""
_OF_ONE_RANK = re.compile(rf"(random-|{SHARDS})([0-9]{{1,7}})\.pt")


class Share(NamedTuple):
    """What one rank downloads of a checkpoint, by the files' names."""

    kept: list[str]
    """For its own restore."""
    verified: list[str]
    """Read and not kept."""


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
    return Share([name for name, taker in takers.items() if taker in (None, rank)], [])


def _taker(name: str, world_size: int, former: int) -> int | None:
    """The rank that needs the file most; None: all of them do."""
    match = _OF_ONE_RANK.fullmatch(name)
    if match is None:
        return None
    of = int(match[2])
    if match[1] == SHARDS and of < former:
        return of * world_size // former  # parts of neighbors are neighbors
    return of % world_size


class Fetched:
    """The files of a checkpoint that this rank has downloaded; they are gone after `close`.

    Args:
        bucket: the run's folder.
        manifest: of the checkpoint.
        ranks: how many ranks of this container download at the same time.
    """

    def __init__(self, bucket: Bucket, manifest: Manifest, ranks: int = 1) -> None:
        self._bucket, self.manifest, self._ranks = bucket, manifest, ranks
        self._memory = MemoryFiles()
        self._temporary = tempfile.TemporaryDirectory(prefix="restore-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        """Where they are, or links to them in memory, if there is room."""

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
            return verification.wrong_content(self._bucket, self.manifest, name, target, place)

        kept = set(share.kept)
        size = sum(self.manifest.files[name].size for name in kept)
        place = self._memory.place if fits(size, self._ranks) else None
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            return next(
                (why for why in pool.map(wrong, [*share.kept, *share.verified]) if why), None
            )

    def close(self) -> None:
        """Remove them."""
        self._temporary.cleanup()
        self._memory.close()
