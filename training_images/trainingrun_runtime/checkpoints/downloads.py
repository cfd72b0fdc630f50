"""A checkpoint's files in memory or on disk, each verified while it is downloaded.

All ranks together read every file before anything is restored, so a damaged one is found before
training code sees it. What the ranks of a pod restore is read from the bucket once: files that all
ranks need are downloaded by one of them, and the others map the same files.

Where the pod has memory for them, they are in memory: a node's disk is often slower than the
bucket. What other ranks map is in files of memory (`memfd_create`), which the kernel frees with the
last process that has them open; the rest is in this process's own memory, whose large pages take
half of the time.
"""

import contextlib
import hashlib
import mmap
import os
import re
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import psutil

from ..progress import rank_measures
from ..progress.process_start import stat_of
from ..store import verification
from ..store.bucket import Bucket
from ..store.manifest import FileDigest, Manifest, digest_file_content
from ..store.storage_errors import DamagedError
from .file_content import FileContent, header_length

if TYPE_CHECKING:  # which `trainingrun_runtime.results` does without
    from ray.train import Checkpoint

STATE_FILE = "session.pt"
"""Each session's checkpoint has it; code without a session may name a file of its own like that."""
_FIRST = 2**17
"""Bytes that are read first of a file whose header is wanted: most headers are shorter."""
_FILES_AT_ONCE = 4
"""Files downloaded at once; each is read with a few requests ahead of its own."""
_MEMORY = 2.5
"""How many times its files a pod has to have free to keep them in memory: training makes the same
state again beside them, and more."""
_RANDOM = re.compile(r"random-([0-9]{1,7})\.pt")
_OF_ONE_RANK = re.compile(rf"{_RANDOM.pattern}|rank-([0-9]{{1,7}})\.safetensors")


class LocalFiles:
    """The files of a checkpoint that are all in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> Collection[str]:
        """Of all files."""
        return {file.name for file in self._folder.iterdir() if file.is_file()}

    def path(self, name: str) -> Path:
        """Where one of them is on this machine."""
        return self._folder / name

    def size(self, name: str) -> int:
        """Bytes of one of them."""
        return self.path(name).stat().st_size

    def header(self, name: str) -> bytes:
        """The header of a file of tensors.

        Raises:
            ValueError: it has none.
        """
        return self.content(name).header()

    def content(self, name: str) -> FileContent:
        """All of one of them."""
        return FileContent.of_file(self.path(name))


class Fetched:
    """The files of a checkpoint that are downloaded; they are gone after `close`.

    Args:
        bucket: the run's folder.
        manifest: of the checkpoint.
        retry: repeats requests to the store.
        ranks: how many ranks of this pod download as much.
    """

    def __init__(
        self,
        bucket: Bucket,
        manifest: Manifest,
        retry: Callable[[Callable[[], Any]], Any] = lambda request: request(),
        ranks: int = 1,
    ) -> None:
        self._bucket, self.manifest, self._retry = bucket, manifest, retry
        self._ranks, self._in_memory = ranks, list[BinaryIO]()
        self._private: dict[str, mmap.mmap] = {}
        self._temporary = _temporary_folder()
        self.folder = Path(self._temporary.name)
        """Where those are that others may map; those in memory by symbolic links."""

    def fetch(self, share: "Share") -> str | None:
        """Download and verify what is not there yet.

        Returns:
            None if all of it is as committed, else a sentence that names the first wrong file.

        Raises:
            StorageError: The store did not answer, so it is unknown.
        """

        def wrong(name: str) -> str | None:
            if name not in kept:
                return verification.wrong_content(self._bucket, self.manifest, name)
            target = self.folder / name
            if target.exists() or name in self._private:
                return None
            if fits and name in shared:
                return self._read(name, target)
            if fits:
                return self._read_private(name)
            return _download(self._bucket, self.manifest, name, target)

        kept = {*share.kept, *share.common}
        shared = share.common if self._ranks > 1 else ()
        own, common = (sum(map(self.size, names)) for names in (share.kept, share.common))
        fits = _MEMORY * (own * self._ranks + common) <= _free_memory()
        # The largest first: then none of them is left over for the end.
        names = sorted({*kept, *share.verified}, key=lambda n: -self.manifest.files[n].size)
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            return next((why for why in pool.map(wrong, names) if why), None)

    @property
    def bucket(self) -> Bucket:
        """The run's folder."""
        return self._bucket

    def take_over(self, folder: Path, names: Collection[str]) -> None:
        """Have files that another rank of this pod has downloaded into its folder, and verified.

        They stay when that rank ends. What is not there is downloaded when it is asked for.
        """
        for name in names:
            source, path = folder / name, self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                if source.is_symlink():
                    self._keep(source.open("rb"), path)
                else:
                    path.hardlink_to(source)

    def names(self) -> Collection[str]:
        """Of all files of the checkpoint."""
        return self.manifest.files

    def content(self, name: str) -> FileContent:
        """All of one of them; downloaded and verified where it was not.

        Raises:
            DamagedError: it is not what was committed.
            StorageError: the store does not answer.
        """
        if name in self._private:
            return FileContent(self._private[name], self.size(name))
        target = self.folder / name
        if not target.exists():
            self._retry(lambda: _require(self._bucket, self.manifest, name, target))
        return FileContent.of_file(target)

    def size(self, name: str) -> int:
        """Bytes of one of them, as committed."""
        return self.manifest.files[name].size

    def header(self, name: str) -> bytes:
        """The header of a file of tensors; verified only if the file is here.

        Raises:
            ValueError: it has none.
            StorageError: the store does not answer.
        """
        if name in self._private or (self.folder / name).exists():
            return self.content(name).header()
        key, size = f"{self.manifest.path}/{name}", self.size(name)
        read = self._bucket.read
        first = self._retry(lambda: read(key, 0, min(size, _FIRST))) if size else b""
        length = header_length(first)
        if length > len(first):
            first = self._retry(lambda: read(key, 0, min(size, length)))
        return bytes(first[:length])

    def close(self) -> None:
        """Remove them; what is mapped stays until it is not."""
        while self._in_memory:
            self._in_memory.pop().close()
        self._private.clear()
        self._temporary.cleanup()

    def _read_private(self, name: str) -> str | None:
        import numpy as np  # which the command line does without

        memory = mmap.mmap(-1, max(self.size(name), 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(memory, np.uint8)

        def copy(piece: memoryview, start: int) -> memoryview:
            # By NumPy, which does not hold Python's lock meanwhile. The piece's own memory is used
            # again for the next one, as it would not be where it waits for the digest.
            place = whole[start : start + len(piece)]
            np.copyto(place, np.frombuffer(piece, np.uint8))
            return place.data

        why = verification.wrong_content(self._bucket, self.manifest, name, copy)
        if why is None:
            self._private[name] = memory
        return why

    def _read(self, name: str, target: Path) -> str | None:
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(open(os.memfd_create(target.name), "w+b"))
            why = _wrong_copy(self._bucket, self.manifest, name, file)
            if why is None:
                opened.pop_all()
                self._keep(file, target)
        return why

    def _keep(self, file: BinaryIO, path: Path) -> None:
        """A file of memory, by a link that other processes of this user can follow."""
        self._in_memory.append(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")


RestoredFiles = LocalFiles | Fetched
"""The files of a checkpoint, by name, as a rank restores them."""


@contextlib.contextmanager
def files_of(checkpoint: "Checkpoint", fetched: Fetched | None = None) -> Iterator[RestoredFiles]:
    """The files of a checkpoint, while it is restored.

    Args:
        checkpoint: the one to restore.
        fetched: what this rank has downloaded of it; further files are downloaded where they are
            asked for. None: nothing, and all files are downloaded.
    """
    if fetched is not None:
        with contextlib.closing(fetched):
            yield fetched
    else:
        with checkpoint.as_directory() as folder:
            yield LocalFiles(Path(folder))


def download(bucket: Bucket, manifest: Manifest, target: Path) -> None:
    """Download a whole checkpoint into a folder that is made; all of it, or nothing.

    Raises:
        FileExistsError: The folder is there already.
        DamagedError: A file is not what was committed.
        StorageError: The store did not answer.
    """
    if target.exists():
        raise FileExistsError(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for name in manifest.files:
            _require(bucket, manifest, name, part / name)
        _set_times(manifest.files, part)
        part.chmod(0o777 & ~_umask())  # mkdtemp's own is for this user alone
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def complete(bucket: Bucket, manifest: Manifest | None, folder: Path) -> None:
    """Make a folder hold a checkpoint and nothing else; files that are as committed stay.

    Args:
        bucket: The run's folder.
        manifest: Of the checkpoint; None: the folder is emptied.
        folder: It exists.

    Raises:
        DamagedError: A file is not what was committed.
        StorageError: The store did not answer.
    """
    wanted = manifest.files if manifest is not None else {}
    for place, folders, names in os.walk(folder, topdown=False):
        for each in (Path(place, name) for name in names):
            digest = wanted.get(each.relative_to(folder).as_posix())
            if digest is None or not _is_as_committed(each, digest):
                each.unlink()
        for each in (Path(place, name) for name in folders):
            if each.is_symlink():
                each.unlink()
            elif not any(each.iterdir()):
                each.rmdir()
    if manifest is None:
        return
    missing = [name for name in wanted if not (folder / name).exists()]
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        list(pool.map(lambda name: _require(bucket, manifest, name, folder / name), missing))
    _set_times(wanted, folder)


def _set_times(files: Mapping[str, FileDigest], root: Path) -> None:
    """Files get the times that they had, and a folder that of its newest file.

    Scripts take the newest of either for the last checkpoint.
    """
    times: dict[Path, int] = {}
    for name, digest in files.items():
        if digest.mtime_ns is not None:
            for path in (Path(name), *Path(name).parents[:-1]):
                times[path] = max(times.get(path, digest.mtime_ns), digest.mtime_ns)
    for path, time_ns in times.items():
        # What a manifest says may be beyond what a file can have.
        with contextlib.suppress(OSError, OverflowError):
            os.utime(root / path, ns=(time_ns, time_ns))


def _is_as_committed(file: Path, digest: FileDigest) -> bool:
    if file.is_symlink() or not file.is_file():
        return False
    # The size first: for the other the file is read as a whole.
    return file.stat().st_size == digest.size and digest_file_content(file) == digest


def _download(bucket: Bucket, manifest: Manifest, name: str, target: Path) -> str | None:
    """Write a file if it is as committed; else a sentence."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{uuid.uuid4().hex}.part")  # no name that a file beside it can have
    try:
        with part.open("xb") as file:
            size = manifest.files[name].size
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is found before
            why = _wrong_copy(bucket, manifest, name, file)
        if why is None:
            part.rename(target)
        return why
    finally:
        part.unlink(missing_ok=True)


def _wrong_copy(bucket: Bucket, manifest: Manifest, name: str, file: BinaryIO) -> str | None:
    """As `verification.wrong_content`; the file gets the content too."""

    def copy(piece: memoryview, start: int) -> memoryview:
        rest = piece
        while rest:
            count = os.pwrite(file.fileno(), rest, start)
            rest, start = rest[count:], start + count
        return piece

    return verification.wrong_content(bucket, manifest, name, copy)


def _require(bucket: Bucket, manifest: Manifest, name: str, target: Path) -> None:
    why = _download(bucket, manifest, name, target)
    if why is not None:
        raise DamagedError(why)


def _free_memory() -> float:
    """Bytes that this container may still take; 0 where there are no files of memory."""
    if not hasattr(os, "memfd_create"):
        return 0.0  # macOS
    used, limit = rank_measures.read_memory()
    free = psutil.virtual_memory().available
    return float(free if limit is None else min(free, limit - used))


def _temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    """A new one, once those are removed whose processes were killed: their files fill the disk."""
    prefix, pid, place = "restore-", os.getpid(), _place()
    started = _started(pid)
    if place is not None and started:
        prefix = f"{prefix}{place}-"
        _remove_left(prefix)
        prefix = f"{prefix}{pid}-{started}-"
    return tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)


def _remove_left(prefix: str) -> None:
    """Remove the folders whose names begin so and whose processes are gone."""
    named = re.compile(rf"{prefix}([1-9][0-9]{{0,8}})-([0-9]+)-\w+", re.ASCII)
    with contextlib.suppress(OSError):
        folder = Path(tempfile.gettempdir())
        for name in os.listdir(folder):
            match = named.fullmatch(name)
            if match is not None and _is_gone(int(match[1]), match[2]):
                shutil.rmtree(folder / name, ignore_errors=True)  # another rank may do it, too


def _place() -> str | None:
    """Where a process id means one process. None: that is not known.

    Other containers of the pod, and with a volume other pods, may have the same temporary folder.
    """
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return None  # of another namespace than this process
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        told = f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except (OSError, ValueError):  # no Linux
        return None
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _is_gone(pid: int, started: str) -> bool:
    """Whether it is certain that a process that was started then is there no longer."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's
        pass
    return _started(pid) not in (started, None)


def _started(pid: int) -> str | None:
    """When a process was started, in ticks since the kernel's start. None: that is not known.

    Of one that was killed, and for which nobody has waited yet, the empty string.
    """
    try:
        told = stat_of(pid)
        return "" if told[0] in ("Z", "X") else told[19]
    except (OSError, IndexError):
        return None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class Share(NamedTuple):
    """What one rank downloads of a checkpoint, by the files' names."""

    kept: list[str]
    """For its own restore."""
    verified: list[str]
    """Read and not kept."""
    common: Collection[str] = ()
    """For the restore of every rank."""


def share_of(
    files: Collection[str],
    rank: int,
    world_size: int,
    former: int,
    session: bool | None = None,
) -> Share:
    """What one rank downloads; all ranks together have every file.

    Args:
        files: names of the checkpoint's files.
        rank: of this process.
        world_size: how many ranks there are.
        former: how many ranks the checkpoint was made by.
        session: see `Manifest.session`.
    """
    if session is False or STATE_FILE not in files:
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
