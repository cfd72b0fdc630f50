"""The run's folder by pyarrow's interface, through which Ray and training code use it.

pyarrow's own clients are not used: they find other credentials than obstore, so that one of the
two could fail where the other works. An object is there once its file is closed without an error,
and not at all if it is not closed. `pyarrow.fs.copy_files` drops the error of a close: whoever
copies with it asks `raise_unwritten`.
"""

import io
import threading
from collections.abc import Generator
from typing import Any

import pyarrow
from pyarrow.fs import FileInfo, FileSystem, FileSystemHandler, FileType, PyFileSystem

from .bucket import Bucket
from .storage_errors import StorageError

_BUFFER = 2**20
"""Bytes that are read at once by readers that jump within a file."""
_unwritten: dict[str, BaseException] = {}
"""Errors of objects that this process has not written, by URI, until they are raised."""
_lock = threading.Lock()


def bucket_of(filesystem: FileSystem) -> Bucket:
    """The bucket behind a filesystem of `BucketFiles`, or of what is made of its handler.

    Raises:
        TypeError: It is another one.
    """
    handler = filesystem.handler if isinstance(filesystem, PyFileSystem) else None
    if not isinstance(handler, BucketFiles):
        raise TypeError(f"{filesystem} is not the run's own storage")
    return handler.bucket


def raise_unwritten(folder: str) -> None:
    """Raise what has kept a file below this folder from being written, in this process.

    Args:
        folder: Its URI.

    Raises:
        StorageError: A file was closed, or written to, with an error.
    """
    with _lock:
        found = {uri: _unwritten.pop(uri) for uri in [*_unwritten] if uri.startswith(f"{folder}/")}
    for uri, error in found.items():
        raise StorageError(f"{uri} was not written: {error}") from None


class BucketFiles(FileSystemHandler):
    """Files of a bucket's folder; nothing outside it, and no folder without a file.

    Args:
        bucket: The run's folder.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.bucket.__reduce__() == self.bucket.__reduce__()

    def __hash__(self) -> int:
        return hash(self.bucket.root)

    def get_type_name(self) -> str:
        return "trainingrun"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: Any) -> list[FileInfo]:
        folder = selector.base_dir.rstrip("/")
        key = self._key(folder)
        infos: dict[str, FileInfo] = {}
        for entry in self.bucket.list(key):
            name = entry.key.removeprefix(f"{key}/" if key else "")
            parents, _, _ = name.rpartition("/")
            for depth in range(parents.count("/") + 1 if parents else 0):
                parent = "/".join(parents.split("/")[: depth + 1])
                infos[parent] = FileInfo(f"{folder}/{parent}", FileType.Directory)
            infos[name] = FileInfo(f"{folder}/{name}", FileType.File, size=entry.size)
        if not infos and not selector.allow_not_found:
            raise FileNotFoundError(folder)
        return [infos[name] for name in sorted(infos) if selector.recursive or "/" not in name]

    def create_dir(self, path: str, recursive: bool) -> None:
        """Nothing: a folder is there with its first file."""

    def delete_dir(self, path: str) -> None:
        self.bucket.delete_folder(self._key(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self.bucket.delete_folder(self._key(path))

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("the bucket is not deleted")

    def delete_file(self, path: str) -> None:
        self._size(path)
        self.bucket.delete([self._key(path)])

    def move(self, src: str, dest: str) -> None:
        self.copy_file(src, dest)
        self.delete_file(src)

    def copy_file(self, src: str, dest: str) -> None:
        with self.bucket.writing(self._key(dest), self._size(src)) as append:
            for piece in self.bucket.stream(self._key(src)):
                append(piece)

    def open_input_stream(self, path: str) -> pyarrow.NativeFile:
        self._size(path)
        return pyarrow.PythonFile(Pieces(self.bucket.stream(self._key(path))), mode="r")

    def open_input_file(self, path: str) -> pyarrow.NativeFile:
        file = _Ranges(self.bucket, self._key(path), self._size(path))
        return pyarrow.PythonFile(io.BufferedReader(file, _BUFFER), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> pyarrow.NativeFile:
        return pyarrow.PythonFile(_Written(self.bucket, self._key(path)), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> pyarrow.NativeFile:
        raise NotImplementedError(f"{path}: an object is written as a whole")

    def _info(self, path: str) -> FileInfo:
        key = self._key(path)
        size = self.bucket.size(key) if key else None
        if size is not None:
            return FileInfo(path, FileType.File, size=size)
        found = not key or self.bucket.has_folder(key)
        return FileInfo(path, FileType.Directory if found else FileType.NotFound)

    def _size(self, path: str) -> int:
        size = self.bucket.size(self._key(path))
        if size is None:
            raise FileNotFoundError(path)
        return size

    def _key(self, path: str) -> str:
        """The key of a path.

        Raises:
            PermissionError: It is not below the run's folder.
        """
        root = self.bucket.path.strip("/")
        own = path.strip("/")
        if own != root and not own.startswith(f"{root}/"):
            raise PermissionError(f"{path} is not below {self.bucket.path}, the run's folder")
        return own.removeprefix(root).strip("/")


class Pieces(io.RawIOBase):
    """A file that is read from its begin to its end.

    Args:
        pieces: Its content, in order.
    """

    def __init__(self, pieces: Generator[memoryview, None, None]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                self.ended()
                return 0
            self.taken(piece)
            self._left = piece
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size

    def taken(self, piece: memoryview) -> None:
        """The next piece, before any of it is handed out; may raise."""

    def ended(self) -> None:
        """There is no other piece; may raise."""

    def close(self) -> None:
        """Make no other request."""
        self._pieces.close()
        super().close()


class _Ranges(io.RawIOBase):
    """An object within which a reader jumps: each read is a request."""

    def __init__(self, bucket: Bucket, key: str, size: int) -> None:
        self._bucket, self._key, self._size, self._at = bucket, key, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        found = self._bucket.read(self._key, self._at, end)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


class _Written:
    """An object that is being written, of at most some 80 GB, as its size is not known before.

    No file of `io`: those close themselves when they are forgotten.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._uri = bucket.uri(key)
        self._upload = bucket.writing(key, 0)
        self._append = self._upload.__enter__()
        self._size = 0
        self.closed = False
        with _lock:
            _unwritten.pop(self._uri, None)

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing: what is written is there as a whole, once it is closed."""

    def write(self, content: Any) -> int:
        if self.closed:
            raise ValueError(f"{self._uri} is closed")
        try:
            self._append(bytes(content))
        except BaseException as error:
            self._fail(error)
            self._upload.__exit__(type(error), error, error.__traceback__)
            raise
        self._size += len(content)
        return len(content)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self._upload.__exit__(None, None, None)
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        self.closed = True
        with _lock:
            _unwritten[self._uri] = error
