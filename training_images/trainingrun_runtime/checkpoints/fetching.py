"""Each rank downloads its share of a checkpoint and verifies it, before anything is restored.

All ranks together read every file, so a damaged one is found before training code sees it. What the
ranks of a machine restore is read from the bucket once: a file that all ranks need is downloaded by
one of them, and the others open what it has.
"""

import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from . import verification
from .bucket import Bucket
from .manifest import Manifest
from .memory_files import MemoryFiles, fits
from .shared_files import SharedFile, offered

STATE_FILE = "state.pt"
"""Only a session's checkpoint has it."""
SHARDS = "shard-"
"""Names of files with the parts of sharded tensors begin so."""
_FILES_AT_ONCE = 4
"""Files downloaded at once; each is read with a few requests ahead of its own."""
_MORE = 4
"""Times as many files are claimed each time, so that few requests are enough for many."""
_OF_ONE_RANK = re.compile(rf"(random-|{SHARDS})([0-9]{{1,7}})\.pt")


Claim = Callable[[list[str], int], list[str]]
"""Of these files, those that this rank downloads next, so many at most; none: others do."""


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
        """Where they are, or links to them in memory, if there is enough of it."""
        self.claimed: list[str] = []
        """Common files that this rank downloads."""

    def fetch(self, share: Share, claim: Claim | None = None) -> str | None:
        """Download and verify what is not there yet.

        Args:
            share: of this rank.
            claim: says which of the common files this rank downloads, where other ranks of this
                machine download the rest. Default: all.

        Returns:
            None if all of it is as committed, else a sentence that names the first wrong file.

        Raises:
            StorageError: The store did not answer, so it is unknown.
        """

        def wrong(name: str) -> str | None:
            target = self.folder / name if name in kept else None
            if target is not None and target.exists():
                return None
            why = verification.wrong_content(self._bucket, self.manifest, name, target, place)
            if target is not None and why is None:
                self._memory.seal(target)
            return why

        kept = {*share.kept, *share.common}
        own, common = (self._size(names) for names in (share.kept, share.common))
        place = self._memory.place if fits(own, common, self._ranks) else None
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            under_way = [pool.submit(wrong, name) for name in (*share.kept, *share.verified)]
            # What it has claimed before the store did not answer.
            under_way += [pool.submit(wrong, name) for name in self.claimed]
            for names in self._claims(share.common, claim):
                begun = [pool.submit(wrong, name) for name in names]
                under_way += begun
                wait(begun)
                if any(file.exception() or file.result() for file in begun):
                    break
            return next((why for file in under_way if (why := file.result())), None)

    def _claims(self, common: Collection[str], claim: Claim | None) -> Iterator[Collection[str]]:
        """Common files that it downloads next: one, then more at once.

        So that ranks which begin at the same time have about as much of few large files each.
        """
        most = 1
        while left := sorted(
            set(common) - set(self.claimed),
            key=lambda name: (-self.manifest.files[name].size, name),
        ):
            mine = claim(left, most) if claim is not None else left
            if not mine:
                return
            self.claimed += mine
            yield mine
            most *= _MORE

    def offered(self, names: Collection[str]) -> dict[str, SharedFile]:
        """Files that it has downloaded, for other ranks of this machine."""
        return {name: offered(self.folder / name) for name in names}

    def adopt(self, files: Mapping[str, SharedFile]) -> None:
        """Open what other ranks of this machine have downloaded and verified.

        What cannot be opened is downloaded when it is asked for, see `FetchedFiles`.
        """
        for name, file in files.items():
            path = self.folder / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with suppress(OSError):
                    self._memory.adopt(file, path)

    def close(self) -> None:
        """Remove them."""
        self._temporary.cleanup()
        self._memory.close()

    def _size(self, names: Collection[str]) -> int:
        return sum(self.manifest.files[name].size for name in names)
