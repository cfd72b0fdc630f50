"""A run's folder on a PersistentVolumeClaim that all pods mount, such as of NFS, in place of a
bucket.

What a bucket promises is made of what holds on a local disk, NFS, CephFS and Lustre alike. An
object is written beside its place and flushed to the disk. It then appears as a whole: by
`rename`, or by `link`, which fails where there is one. Files and folders are opened anew for each
answer, as NFS then asks its server whether what it has in its cache is out of date (nfs(5),
close-to-open).

Read in Linux's `fs/nfs/dir.c`: opening a folder asks the server, too, unless the mount has `nocto`
(`nfs_lookup_verify_inode`); a name is absent in the cache until its folder is seen to have changed
(`nfs_neg_need_reval`). From NFS 4.1 on a name in the cache is opened by its handle: where another
node has replaced the file, what is read is old, or ESTALE. So the folder is opened before the file.
"""

import errno
import os
import re
import shutil
import stat
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from trainingrun_protocol.contract import CLAIM_FOLDERS_ENV, CLAIMS_FOLDER

from . import mount_errors
from .in_time import in_time, require_waiting
from .storage_errors import LackingError, NotMountedError, StorageError, UnusableError, no_name

T = TypeVar("T")

_LIMIT_S, _DATA_LIMIT_S = 20.0, 50.0
"""Seconds for an answer; for one to `_PIECE` bytes, or to a list."""
_PIECE = 8 * 1024 * 1024
"""Bytes per write, and after which a file is flushed, so that the last flush is short, too."""
_STAGED = ".staged-"
"""Begin of the name of a file that is being written."""
_ABANDONED_S = 3600.0
"""Seconds without a write after which nobody writes a staged file any longer."""
_IN_NO_NAME = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and what Python reads of a name that is no UTF-8: manifests hold UTF-8."""


class Entry(NamedTuple):
    """An object that exists."""

    key: str
    """Its name below the folder."""
    size: int
    """Bytes."""


def folder_of(uri: str) -> tuple[Path, Path]:
    """Where a claim is mounted here, and the folder of a `pvc://claim/path`.

    Raises:
        UnusableError: The URI names no claim or leads out of it, or the variable is malformed.
    """
    parts = urlsplit(uri)
    path = unquote(parts.path).strip("/")
    if not parts.netloc or ".." in path.split("/") or _IN_NO_NAME.search(path):
        raise UnusableError(
            f"storage.uri is {uri!r}, which is no folder of a claim; write pvc://claim/path"
        )
    mount = _elsewhere().get(parts.netloc) or Path(CLAIMS_FOLDER) / parts.netloc
    return mount, mount / path


def _elsewhere() -> dict[str, Path]:
    """Claims that are mounted at another place on this machine, by their names."""
    found = {}
    for each in filter(None, os.environ.get(CLAIM_FOLDERS_ENV, "").split(",")):
        claim, _, folder = each.partition("=")
        if not Path(folder).is_absolute():
            raise UnusableError(
                f"{CLAIM_FOLDERS_ENV} has {each!r}; write claim=/folder, several with commas"
            )
        found[claim.strip()] = Path(folder)
    return found


class ClaimFiles:
    """How `ClaimBucket` does what a `Bucket` promises; its methods are those of that."""

    root: str
    """As `Bucket.root`."""
    condition: ClassVar[str] = "exclusive creates (link)"

    @cached_property
    def _places(self) -> tuple[Path, Path]:
        return folder_of(self.root)

    @property
    def path(self) -> str:
        """The folder as pyarrow and Ray name it."""
        return str(self._places[1])

    def upload(self, key: str, content: bytes | Path, content_type: str | None = None) -> None:
        """As `Bucket.upload`; the name says what a browser takes it for."""
        with self.writing(key, 0) as append:
            if isinstance(content, bytes):
                append(content)
                return
            with content.open("rb") as file:
                while piece := file.read(_PIECE):
                    append(piece)

    @contextmanager
    def writing(
        self, key: str, size: int, part: int | None = None
    ) -> Iterator[Callable[[bytes | memoryview], object]]:
        """As `Bucket.writing`."""
        path = self._file(key)
        staged = self._ask(lambda: self._staged(path))
        try:
            yield partial(self._append, staged)
            # A full claim may say so at the last flush alone. Each retry would leave a copy.
            self._ask(staged.publish, _DATA_LIMIT_S)
        except BaseException:
            with suppress(StorageError):  # the mount may be what has failed
                self._ask(staged.discard)
            raise

    def _append(self, staged: "_Staged", content: bytes | memoryview) -> None:
        whole = memoryview(content).cast("B")
        for start in range(0, len(whole), _PIECE):
            piece = whole[start : start + _PIECE]
            self._ask(partial(staged.append, piece), _DATA_LIMIT_S)

    def get(self, key: str) -> bytes | None:
        """As `Bucket.get`."""
        path = self._file(key)

        def read() -> bytes | None:
            with self._opened(path) as file:
                return None if file is None else _read(file, 0, os.fstat(file).st_size)

        return self._ask(read, _DATA_LIMIT_S)

    def size(self, key: str) -> int | None:
        """As `Bucket.size`."""
        path = self._file(key)

        def size() -> int | None:
            # Of a file that is open: NFS may have the size of a name from its cache.
            with self._opened(path) as file:
                return None if file is None else os.fstat(file).st_size

        return self._ask(size)

    def read(self, key: str, start: int, end: int) -> memoryview:
        """As `Bucket.read`."""
        path = self._file(key)

        def read() -> bytes:
            with self._opened(path) as file:
                if file is None:
                    raise FileNotFoundError(path)
                return _read(file, start, end)

        return memoryview(self._ask(read, _DATA_LIMIT_S))

    def list(self, prefix: str = "") -> list[Entry]:
        """As `Bucket.list`."""
        return sorted(self._ask(lambda: [*self._below(prefix)], _DATA_LIMIT_S))

    def list_begun(self, prefix: str) -> Sequence[Entry]:
        """As `Bucket.list_begun`."""
        return sorted(self._ask(lambda: [*self._below(prefix, begun=True)], _DATA_LIMIT_S))

    def folders(self) -> Sequence[str]:
        """As `Bucket.folders`."""
        return sorted({one.key.partition("/")[0] for one in self.list() if "/" in one.key})

    def has_folder(self, prefix: str) -> bool:
        """As `Bucket.has_folder`."""
        return self._ask(lambda: any(True for _ in self._below(prefix)), _DATA_LIMIT_S)

    def remove_folders(self, prefix: str) -> None:
        """Delete a folder that has no object any longer."""
        self._ask(partial(shutil.rmtree, self._file(prefix), ignore_errors=True), _DATA_LIMIT_S)

    def clean(self) -> None:
        """Delete what processes have left that were killed while they wrote."""

        def clean() -> None:
            folder = self._places[1]
            probe = _Staged(folder / "probe")  # the time by the clock of whoever keeps the files
            now = os.fstat(probe.file.fileno()).st_mtime
            probe.discard()
            for within, _, names in os.walk(folder):
                for path in (Path(within) / name for name in names if name.startswith(_STAGED)):
                    with suppress(FileNotFoundError):
                        if now - path.stat().st_mtime > _ABANDONED_S:
                            path.unlink()

        self._ask(clean, _DATA_LIMIT_S)

    def _put(self, key: str, content: bytes, *, only_new: bool = False) -> None:
        path = self._file(key)

        def put() -> None:
            staged = self._staged(path)
            try:
                staged.append(content)
                staged.publish(only_new=only_new)
            except BaseException:
                staged.discard()
                raise

        self._ask(put)

    def _delete_one(self, key: str) -> None:
        path = self._file(key)

        def delete() -> None:
            self._require_no_links(path)
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                # A manifest that is gone must not come back without the files of its checkpoint.
                _flush_folder(path.parent)

        self._ask(delete)

    def _file(self, key: str) -> Path:
        """The file of a key.

        Raises:
            ValueError: No file can have that name, or it leads out of the folder.
        """
        parts = key.split("/")
        own = parts[-1].startswith(_STAGED)
        if own or _IN_NO_NAME.search(key) or any(part in ("", ".", "..") for part in parts):
            raise no_name(self.root, repr(key))
        return self._places[1].joinpath(*parts)

    def _staged(self, path: Path) -> "_Staged":
        self._require_no_links(path)
        return _Staged(path)

    def _require_no_links(self, path: Path) -> None:
        """Refuse folders that are symbolic links: whoever may write to the claim may make one.

        Raises:
            OSError: The run's folder is one, or a folder in it on the way to this file.
        """
        for folder in path.parents:
            if folder.is_relative_to(self._places[1]) and folder.is_symlink():
                raise OSError(errno.ELOOP, f"{folder} is a symbolic link")

    @contextmanager
    def _opened(self, path: Path) -> Iterator[int | None]:
        """A file that is opened anew; none: there is none."""
        self._require_no_links(path)
        try:
            os.close(_open(path.parent, os.O_DIRECTORY))  # see the module's text
            file = _open(path, os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            self._ask_server(path.parent)
            try:
                file = _open(path, os.O_NOFOLLOW)
            except (FileNotFoundError, NotADirectoryError):
                yield None
                return
        try:
            yield None if stat.S_ISDIR(os.fstat(file).st_mode) else file
        finally:
            os.close(file)

    def _ask_server(self, folder: Path) -> None:
        """Open all folders down to this one, so that no name below is absent in a cache alone."""
        mount = self._places[0]
        for each in reversed([folder, *folder.parents]):
            if each.is_relative_to(mount):
                try:
                    os.close(_open(each, os.O_DIRECTORY))
                except (FileNotFoundError, NotADirectoryError):
                    return

    def _below(self, prefix: str, *, begun: bool = False) -> Iterator[Entry]:
        prefix = prefix.strip("/")
        folder = self._file(prefix) if prefix else self._places[1]
        self._require_no_links(folder / "any")
        if not folder.is_dir():
            self._ask_server(folder)
        yield from _entries(folder, f"{prefix}/" if prefix else "", begun)

    def _ask(self, request: Callable[[], T], limit_s: float | None = None) -> T:
        """Make a request within a limited time, with the errors as sentences."""

        def ask() -> T:
            self._require_mounted()  # else what is written would be on the pod's own disk
            try:
                return request()
            finally:  # else an empty folder in place of the claim would answer
                self._require_mounted()

        try:
            return in_time(ask, limit_s or _LIMIT_S)
        except OSError as error:
            raise mount_errors.explain(error, self.root) from None

    def _require_mounted(self) -> None:
        """Raise where there is no claim at its place.

        Raises:
            NotMountedError: Nothing is mounted there; or, where a person has named the place, which
                may be a folder of a mount, that is empty.
        """
        mount = self._places[0]
        claim = urlsplit(self.root).netloc
        try:
            if mount.parent == Path(CLAIMS_FOLDER):
                there = os.stat(mount).st_dev != os.stat(mount.parent).st_dev or _is_mounted(mount)
            else:
                with os.scandir(mount) as entries:
                    there = next(entries, None) is not None
        except (FileNotFoundError, NotADirectoryError):
            there = False
        if not there:
            raise NotMountedError(
                f"claim {claim} of {self.root} is not mounted at {mount}; mount it, and where that "
                f"is at another folder, set {CLAIM_FOLDERS_ENV} to {claim}=/folder"
            )


class _Staged:
    """A file that is being written, and that nobody sees before it is published.

    Raises:
        StorageError: Its folder was deleted meanwhile, or is no folder. Other methods, too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._staged = path.parent / f"{_STAGED}{uuid.uuid4().hex}"
        self._unflushed = 0
        with _folder_of(path):
            _make(path.parent)
            file = _open(self._staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self.file = os.fdopen(file, "wb", buffering=0)
        self._appending = threading.Lock()

    def append(self, content: bytes | memoryview) -> None:
        left = memoryview(content).cast("B")
        with self._appending:
            self._unflushed += len(left)
            while left:
                left = left[self.file.write(left) :]
            if self._unflushed >= _PIECE:
                os.fdatasync(self.file.fileno())
                self._unflushed = 0

    def publish(self, *, only_new: bool = False) -> None:
        """Have it at its place; with `only_new` unless there is one.

        Raises:
            FileExistsError: There is one.
            LackingError: The file system has no way to tell.
        """
        os.fsync(self.file.fileno())
        self.file.close()
        require_waiting()
        with _folder_of(self._path):
            if only_new:
                _link(self._staged, self._path)
                self._staged.unlink()
            else:
                os.replace(self._staged, self._path)
            _flush_folder(self._path.parent)

    def discard(self) -> None:
        # An append that hung may go on, by when the number of a closed file is another file's: it
        # is over before, or finds the file closed.
        with suppress(OSError), self._appending:
            self.file.close()
        with suppress(OSError):
            self._staged.unlink()


@contextmanager
def _folder_of(path: Path) -> Iterator[None]:
    """What is written to the folder of a file: that it is gone says nothing of any object."""
    try:
        yield
    except FileNotFoundError:
        raise StorageError(f"{path.parent} was deleted while {path.name} was written") from None
    except NotADirectoryError:
        raise UnusableError(
            f"{path.parent} is no folder; move away the file at its place"
        ) from None


def _link(staged: Path, path: Path) -> None:
    try:
        os.link(staged, path)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise LackingError(
                f"the file system of {path.parent} makes no hard links "
                f"({errno.errorcode[error.errno]}), so it cannot keep two drivers apart; use one "
                "that does, such as NFS, CephFS or Lustre"
            ) from None
        raise


def _make(folder: Path) -> None:
    """Make a folder and those above it; each is on the disk before something is in it."""
    if folder.is_dir():
        return
    _make(folder.parent)
    with suppress(FileExistsError):  # another process makes it, too
        folder.mkdir()
    _flush_folder(folder.parent)


def _flush_folder(folder: Path) -> None:
    file = _open(folder, os.O_DIRECTORY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):  # it has no such thing
            raise
    finally:
        os.close(file)


def _open(path: Path, flags: int = 0) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o666)


def _read(file: int, start: int, end: int) -> bytes:
    """Bytes of a file; fewer at its end."""
    pieces = []
    while start < end and (piece := os.pread(file, end - start, start)):
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _entries(folder: Path, prefix: str, begun: bool) -> Iterator[Entry]:
    """The objects in a folder, at any depth; what is deleted meanwhile is left out.

    Args:
        folder: The folder.
        prefix: Of their keys.
        begun: Also files that are still being written.
    """
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for each in entries:
            if _IN_NO_NAME.search(each.name):
                continue  # no object: whoever asked for it would get an error
            if each.is_dir(follow_symlinks=False):
                yield from _entries(folder / each.name, f"{prefix}{each.name}/", begun)
            elif each.is_file(follow_symlinks=False) and (
                begun or not each.name.startswith(_STAGED)
            ):
                with suppress(FileNotFoundError):
                    yield Entry(f"{prefix}{each.name}", each.stat().st_size)


def _is_mounted(folder: Path) -> bool:
    """Whether the kernel has a mount there, such as one of the same file system."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        return any(line.split()[4] == str(folder) for line in mounts)
