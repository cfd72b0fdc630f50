"""A read-only filesystem with exactly the files of one manifest, from which training code restores.

Every client with write access to the bucket can add objects to a checkpoint's folder, and Ray
downloads all objects of a folder: one with the key `…/../../x` is written outside. Each
file of this filesystem is checked against its size and BLAKE3 digest while it is read.
"""

from collections.abc import Generator
from typing import Any

import pyarrow
import pyarrow.fs
from blake3 import blake3
from pyarrow.fs import FileInfo, FileType

from ..store.bucket import Bucket
from ..store.bucket_files import Pieces
from ..store.manifest import FileDigest, Manifest
from ..store.storage_errors import DamagedError


def offered(bucket: Bucket, manifest: Manifest) -> tuple[str, pyarrow.fs.FileSystem]:
    """Path and filesystem under which Ray finds the checkpoint and nothing else."""
    view = _CommittedFiles(bucket, manifest, bucket.path)
    return view.base, pyarrow.fs.PyFileSystem(view)


class _Verified(Pieces):
    """A file of the bucket that fails to be read once it is not what was committed."""

    def __init__(
        self, pieces: Generator[memoryview, None, None], wanted: FileDigest, uri: str
    ) -> None:
        super().__init__(pieces)
        self._wanted, self._uri = wanted, uri
        self._digest = blake3()
        self._taken = 0

    def taken(self, piece: memoryview) -> None:
        self._digest.update(piece)
        self._taken += len(piece)
        # Before the last byte is handed out: a reader that has the size may not read again.
        self._check(at_end=False)

    def ended(self) -> None:
        self._check(at_end=True)

    def _check(self, *, at_end: bool) -> None:
        whole = self._taken == self._wanted.size
        if whole and self._digest.hexdigest() == self._wanted.blake3:
            return
        if at_end or whole or self._taken > self._wanted.size:
            raise DamagedError(f"{self._uri} changed while it was restored: it is not as committed")


class _CommittedFiles(pyarrow.fs.FileSystemHandler):
    """Lists and opens the files of one manifest; has no other path and writes nothing."""

    def __init__(self, bucket: Bucket, manifest: Manifest, root: str) -> None:
        self.base = f"{root}/{manifest.path}"
        self._bucket, self._manifest = bucket, manifest
        self._files = {f"{self.base}/{name}": name for name in manifest.files}
        self._folders = {self.base}
        for path in self._files:
            while (path := path.rpartition("/")[0]) not in self._folders:
                self._folders.add(path)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _CommittedFiles)
            and self._bucket == other._bucket
            and self._manifest == other._manifest
        )

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return "checkpoint"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return [self._info(path.rstrip("/")) for path in paths]

    def get_file_info_selector(self, selector: Any) -> list[FileInfo]:
        folder = selector.base_dir.rstrip("/")
        if folder not in self._folders:
            if selector.allow_not_found:
                return []
            raise FileNotFoundError(folder)
        below = sorted(
            path for path in (*self._folders, *self._files) if path.startswith(f"{folder}/")
        )
        return [
            self._info(path)
            for path in below
            if selector.recursive or "/" not in path.removeprefix(f"{folder}/")
        ]

    def open_input_stream(self, path: str) -> Any:
        return pyarrow.PythonFile(self._verified(path), mode="r")

    def open_input_file(self, path: str) -> Any:
        # Into memory: who jumps within a file would use bytes before their digest is known.
        with self._verified(path) as content:
            return pyarrow.BufferReader(content.readall())

    def _verified(self, path: str) -> _Verified:
        name = self._name(path)
        key = f"{self._manifest.path}/{name}"
        return _Verified(
            self._bucket.stream(key), self._manifest.files[name], self._bucket.uri(key)
        )

    def _info(self, path: str) -> FileInfo:
        if path in self._files:
            size = self._manifest.files[self._files[path]].size
            return FileInfo(path, FileType.File, size=size)
        kind = FileType.Directory if path in self._folders else FileType.NotFound
        return FileInfo(path, kind)

    def _name(self, path: str) -> str:
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._files[path]

    def _refuse(self, *_: Any) -> Any:
        raise PermissionError(f"the checkpoint {self._manifest.path} is read-only")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse
