"""The folder of a pod into which scripts write their checkpoints, for all ranks of the pod.

Nobody tells when a script has written a whole checkpoint. So the folder counts as one, with all
files in it, once it is settled: looks have found the same files for `SETTLED_S`, and none open for
writing. The files' own times do not say it: a folder that is renamed, as each pod does it with its
part of a checkpoint, leaves them as they are, and a file that is deleted has none.

What a script that has ended with 0 has written is whole. A script that has ended otherwise, such as
by SIGTERM, may have left a file half written, or a part of several files. After it counts what was
settled before, and what scripts of other ranks have written since.

A checkpoint is what the folder had once it was settled. Scripts go on while it is uploaded: what
they write beside its files is in the next one, and what they delete or replace is held open until
it is uploaded. Not by hard links: a new link, too, changes a file's stamp.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from trainingrun_protocol.contract import CHECKPOINT_FOLDER_ENV

from ..checkpoints import downloads
from ..coordinator.scripts import FolderState, Save
from ..store.bucket import Bucket
from ..store.manifest import FileDigest, Manifest, digest_file
from ..store.storage_retry import StorageRetry

log = logging.getLogger(__name__)

SETTLED_S = 5.0
"""Seconds without a change. A checkpoint of several files may have pauses between them."""
FOLDER = "checkpoints"
"""In the state directory."""
_PIECE = 8 * 1024 * 1024
"""Bytes that are read at once."""
_MOST_HELD = 256
"""Files of a save that are held open at once. A process may often have 1,024 open."""
HELD_UP_S = 300.0
"""Seconds for which a file may be written; longer than most checkpoints take."""
_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".incomplete")
_TEMPORARY = (*_UNFINISHED, ".lock", ".log", "~")
"""Endings of names that are left out."""
_UNFINISHED_BEGINNINGS = ("tmp-", "tmp_")
_BEGINNINGS = (*_UNFINISHED_BEGINNINGS, ".", "events.out.tfevents.")
"""Beginnings of such names; the last is that of TensorBoard's files, which grow all the time."""
_DELETED = " (deleted)"
"""What /proc adds to the name of an open file that is deleted."""
_INDEX = ".metadata"
"""What `torch.distributed.checkpoint` writes last and cannot load a checkpoint without. It is
written as `.metadata.tmp`."""

Stamp = tuple[int, int, int]
"""Size in bytes, time of the last change in nanoseconds, and the number of the file's inode."""


def is_temporary(name: str) -> bool:
    """Whether a file is left out by its name, or by that of a folder that it is in."""
    folder, _, own = name.rpartition("/")
    return _has_part(folder if own == _INDEX else name, _BEGINNINGS, _TEMPORARY)


def is_unfinished(name: str) -> bool:
    """Whether its name says that a file, or a folder that it is in, is to be renamed once whole."""
    return _has_part(name, _UNFINISHED_BEGINNINGS, _UNFINISHED)


def _has_part(name: str, beginnings: tuple[str, ...], endings: tuple[str, ...]) -> bool:
    return any(part.startswith(beginnings) or part.endswith(endings) for part in name.split("/"))


class ScriptFolder:
    """The folder of this pod.

    Args:
        path: where it is.
        clock: a monotonic clock in seconds.
        advise: is told, once, of a file that keeps all from being committed, and what to do.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        advise: Callable[[str], object] = log.warning,
    ) -> None:
        self.path, self._clock, self._advise = path, clock, advise
        self._first: dict[str, Stamp] = {}
        self._seen: dict[str, Stamp] | None = {}  # by the last look; None: a file was open
        self._since = clock()  # the end of the first look of those that have seen the same
        self._whole: dict[str, Stamp] = {}  # when it was settled last
        self._harmless: set[int] = set()  # ranks whose scripts have ended and left nothing half
        self._discarded = 0  # saves in a row that the script has changed while they were uploaded
        self._written: dict[str, float] = {}  # files that hold it up, and since when
        self._advised = False

    def prepare(self, bucket: Bucket, manifest: Manifest | None, retry: StorageRetry) -> None:
        """Make it hold a checkpoint and nothing else; files that are as committed stay.

        Args:
            bucket: the run's folder in which the checkpoint is.
            manifest: of the checkpoint; None: there is none, and the folder is emptied.
            retry: repeats requests to the store.

        Raises:
            DamagedError: a file is not what was committed.
            StorageError: the store did not answer.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        retry(lambda: downloads.complete(bucket, manifest, self.path))
        self._first = self._seen = self._whole = self._look()[0]
        self._since = self._clock()

    def state(self, ended: Mapping[int, tuple[int, float]], ranks: int) -> FolderState:
        """What is in it.

        Args:
            ended: exit codes of the scripts of this pod that have ended, and when in Unix seconds,
                by rank.
            ranks: scripts of this pod.
        """
        began, running = self._clock(), ranks - len(ended)
        stamps, unfinished = self._look()
        for rank, (code, at) in ended.items():
            if code == 0 or self._is_whole_at(at, stamps):
                # For good: what is deleted later was not deleted by that script.
                self._harmless.add(rank)
        settled = not running or self._is_the_same(began, stamps, unfinished)
        settled = settled and self._harmless >= ended.keys()
        if settled:
            self._whole = stamps
        return FolderState(
            files={name: self._first.get(name) != stamp for name, stamp in stamps.items()},
            fingerprint=_fingerprint(stamps),
            settled=settled,
            running=running,
        )

    def upload(self, save: Save, bucket: Bucket, key: str, rank: int, retry: StorageRetry) -> bool:
        """Upload this pod's part of a checkpoint, and then the digests of its files.

        Args:
            save: which files.
            bucket: the run's folder.
            key: of the checkpoint's folder.
            rank: of this process.
            retry: repeats requests to the store.

        Returns:
            Whether it is what was in the folder when the save was planned, and no unfinished file
            was being written: else what is uploaded is no checkpoint. What else the scripts write
            meanwhile does not matter.

        Raises:
            StorageError: the store did not answer.
        """
        began = time.monotonic()
        stamps, unfinished = self._look()
        # Since the last look a script may have begun to write its part of a checkpoint, of which
        # other pods have renamed theirs and planned this save: their new part is none without it.
        if _fingerprint(stamps) != save.fingerprint or (unfinished and self._open_files()):
            return False
        # The newest first: one with the name of the last checkpoint is overwritten with each.
        names = sorted(save.files, key=lambda name: stamps[name][1], reverse=True)
        digests = {}
        with ExitStack() as opened:
            held = self._hold(names, opened)
            for name in names:
                path, sent = self.path / name, None
                with (
                    suppress(FileNotFoundError, NotADirectoryError),
                    held.pop(name, None) or path.open("rb") as file,
                ):
                    sent = retry(partial(_send, file, path, stamps[name], bucket, f"{key}/{name}"))
                if sent is None:
                    size = sum(stamps[each][0] for each in names)
                    self._discard(rank, name, len(names), size, time.monotonic() - began)
                    return False
                digests[name] = asdict(sent)
        if digests:
            own = f"{key}/{digest_file(rank)}"
            retry(lambda: bucket.put(own, json.dumps(digests).encode()))
        self._discarded = 0
        return True

    def _hold(self, names: Sequence[str], opened: ExitStack) -> dict[str, BinaryIO]:
        """Open files of a save, the last `_MOST_HELD` of these names."""
        held: dict[str, BinaryIO] = {}
        with suppress(OSError):  # what is missing is found when it is to be uploaded
            # Another filesystem may be a claim: on NFS no folder with an open file can be deleted.
            own_disk = self.path.stat().st_dev == self.path.parent.stat().st_dev
            for name in islice(reversed(names), _MOST_HELD if own_disk else 0):
                held[name] = opened.enter_context((self.path / name).open("rb"))
        return held

    def _discard(self, rank: int, name: str, files: int, size: int, took_s: float) -> None:
        """Count a save that the script has changed, and say so at the second in a row."""
        self._discarded += 1
        if self._discarded == 2:
            log.warning(
                "rank %d: the second checkpoint in a row is discarded, since the script changed or "
                "deleted %s in the %.0f s that the upload of %d files (%.2f GB) has taken; keep "
                "fewer checkpoints, write them less often, or replace files by renaming new ones",
                *(rank, name, took_s, files, size / 1e9),
            )

    def _look(self) -> tuple[dict[str, Stamp], bool]:
        """The files that count, and whether there is one whose name says that it is unfinished."""
        found, unfinished = {}, False
        for folder, _, names in os.walk(self.path):
            for name in names:
                file = Path(folder, name)
                inside = file.relative_to(self.path).as_posix()
                unfinished = unfinished or is_unfinished(inside)
                with suppress(OSError):  # it is gone, or a link to nothing
                    if not is_temporary(inside) and file.is_file():
                        found[inside] = _stamp(file.stat())
        return found, unfinished

    def _is_the_same(self, began: float, stamps: dict[str, Stamp], unfinished: bool) -> bool:
        """Whether looks have found this for `SETTLED_S`, and no file open for writing.

        The first of them, too, has to find none open: a file is closed before it is renamed, and
        when a signal has ended its script, which is known a moment later.

        Args:
            began: when this look did: a file may change after it was looked at.
            stamps: the files that it has found.
            unfinished: whether there is one whose name says so.
        """
        if stamps != self._seen:
            self._seen = None if self._is_held_up() else stamps
            self._since = self._clock()
            return False
        if began - self._since < SETTLED_S:
            return False
        if (unfinished or stamps != self._whole) and self._is_held_up():
            self._seen = None
            return False
        return True

    def _is_whole_at(self, end: float, stamps: Mapping[str, Stamp]) -> bool:
        """Whether a script that ended then, not with 0, has left each of these files whole.

        So is what was settled before, and what has changed since, by scripts of other ranks. A
        file that is gone may have been deleted by this one, before it would have written another.
        """
        return self._whole.keys() <= stamps.keys() and all(
            stamp == self._whole.get(name) or stamp[1] / 1e9 > end for name, stamp in stamps.items()
        )

    def _is_held_up(self) -> bool:
        """Whether a file is open for writing; says so where one has been for long."""
        now = self._clock()
        self._written = {name: self._written.get(name, now) for name in self._open_files()}
        name = min(self._written, key=self._written.__getitem__, default=None)
        if name is not None and now - self._written[name] >= HELD_UP_S and not self._advised:
            self._advised = True
            self._advise(
                f"no checkpoint is committed while {name} is open for writing in "
                f"${CHECKPOINT_FOLDER_ENV}, as it has been for {HELD_UP_S / 60:.0f} minutes; close "
                "it, write it elsewhere, or give it a name that ends in .log"
            )
        return name is not None

    def _open_files(self) -> set[str]:
        """Those that a process of this pod has open for writing; not known without /proc.

        An unfinished one counts: another pod may have renamed its part of the same checkpoint.
        Not by psutil, which asks more of each open file than where it is.
        """
        found, root = set[str](), f"{self.path.resolve()}/"
        for link in Path("/proc").glob("[0-9]*/fd/*"):
            with suppress(OSError, ValueError):  # it was closed, or is another user's
                file = os.readlink(link)
                inside = file.removeprefix(root)
                if file.endswith(_DELETED) and not os.path.lexists(file):
                    continue  # in no checkpoint, whatever is written to it
                if file.startswith(root) and (is_unfinished(inside) or not is_temporary(inside)):
                    text = (link.parents[1] / "fdinfo" / link.name).read_text()
                    flags = int(text.partition("flags:")[2].split()[0], 8)
                    if flags & os.O_ACCMODE != os.O_RDONLY:
                        found.add(inside)
        return found


def _stamp(stat: os.stat_result) -> Stamp:
    # The first time alone is set back by a copy, the second by nothing.
    return stat.st_size, max(stat.st_mtime_ns, stat.st_ctime_ns), stat.st_ino


def _fingerprint(stamps: Mapping[str, Stamp]) -> str:
    return blake2b(json.dumps(sorted(stamps.items())).encode(), digest_size=16).hexdigest()


def _send(file: BinaryIO, path: Path, stamp: Stamp, bucket: Bucket, key: str) -> FileDigest | None:
    """Upload an open file; the size and digest of what was sent. None: it is not what it was."""
    if not _is_unchanged(file, path, stamp):
        return None
    sent, digest = 0, blake3()
    file.seek(0)  # it may be repeated
    with bucket.writing(key, stamp[0]) as append:
        while piece := file.read(_PIECE):
            digest.update(piece)
            append(piece)
            sent += len(piece)
        unchanged = _is_unchanged(file, path, stamp)
    mtime_ns = os.fstat(file.fileno()).st_mtime_ns
    return FileDigest(sent, digest.hexdigest(), mtime_ns) if unchanged else None


def _is_unchanged(file: BinaryIO, path: Path, stamp: Stamp) -> bool:
    """Whether an open file has what it had, also where the script has deleted or replaced it."""
    found = os.fstat(file.fileno())
    if _stamp(found) == stamp:
        return True
    with suppress(OSError):  # it is deleted
        if path.stat().st_ino == found.st_ino:
            return False
    # That has changed the second of its times. What is written into it sets the first.
    size, changed, inode = stamp
    return (found.st_size, found.st_ino) == (size, inode) and found.st_mtime_ns <= changed
