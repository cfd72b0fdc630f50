"""The filesystem that Ray Train gets: checkpoints are in the bucket, Ray's own files are not.

Read for ray 2.58-2.60: `ray/train/v2/_internal/execution/storage.py` (the marker by which it tries
the storage at each start) and `.../checkpoint/checkpoint_manager.py` (a snapshot, written at each
checkpoint by the process that watches over the workers; a failed write ends the run). Every driver
has a folder of its own and never reads a former snapshot, so neither needs to be in the bucket.
"""

from typing import Any

import pyarrow
from pyarrow import fs
from ray.train import Checkpoint
from ray.train.v2._internal.constants import (
    CHECKPOINT_MANAGER_SNAPSHOT_FILENAME,
    VALIDATE_STORAGE_MARKER_FILENAME,
)

from ..store.storage_errors import AbsentError, StorageError
from ..store.storage_retry import StorageRetry


def for_ray(filesystem: fs.FileSystem) -> fs.PyFileSystem:
    """The filesystem for Ray: its own files work while the store does not answer."""
    return fs.PyFileSystem(_CheckpointsOnly(filesystem))


def behind(filesystem: fs.FileSystem) -> fs.FileSystem:
    """The filesystem that `for_ray` was given."""
    handler = getattr(filesystem, "handler", None)
    return handler.inner if isinstance(handler, _CheckpointsOnly) else filesystem


class RetryingCheckpoint(Checkpoint):
    """A checkpoint in the bucket whose download waits for the store."""

    def to_directory(self, path: Any = None) -> str:
        """Download it; see `ray.train.Checkpoint`."""
        retry = StorageRetry(lambda message: None)
        try:
            return str(retry(lambda: super(RetryingCheckpoint, self).to_directory(path)))
        except (FileNotFoundError, AbsentError):
            raise self._gone() from None

    def _gone(self) -> StorageError:
        return StorageError(f"the checkpoint {self.path} is gone; another one is used")


class SessionCheckpoint(RetryingCheckpoint):
    """One that a session has made: it carries its step to Ray's controller.

    Metrics are the user's: one of them may be called `step`, too.
    """

    def __init__(self, path: str, filesystem: fs.FileSystem, step: int) -> None:
        super().__init__(path, filesystem)
        self.step = step
        """Steps done when it was made."""


class _CheckpointsOnly(fs.FileSystemHandler):
    """Passes all calls on, except those for Ray's own files, which are not stored."""

    def __init__(self, inner: fs.FileSystem) -> None:
        self.inner = inner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _CheckpointsOnly) and self.inner.equals(other.inner)

    def __hash__(self) -> int:
        return hash(self.inner.type_name)

    def get_type_name(self) -> str:
        return str(self.inner.type_name)

    def normalize_path(self, path: str) -> str:
        return str(self.inner.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        ours = {path: _bookkeeping(path) for path in paths}
        asked = [path for path in paths if ours[path] is None]
        found = iter(self.inner.get_file_info(asked) if asked else ())
        return [info if (info := ours[path]) is not None else next(found) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        return list(self.inner.get_file_info(selector))

    def create_dir(self, path: str, recursive: bool) -> None:
        # An object store has no folders to make, and a marker for one is a request that can fail.
        if isinstance(self.inner, fs.LocalFileSystem):
            self.inner.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self.inner.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self.inner.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("the bucket is not deleted")

    def delete_file(self, path: str) -> None:
        self.inner.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self.inner.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self.inner.copy_file(src, dest)

    def open_input_stream(self, path: str) -> pyarrow.NativeFile:
        return self.inner.open_input_stream(path)

    def open_input_file(self, path: str) -> pyarrow.NativeFile:
        return self.inner.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> pyarrow.NativeFile:
        if _bookkeeping(path) is not None:
            return pyarrow.BufferOutputStream()
        return self.inner.open_output_stream(path, metadata=metadata)

    def open_append_stream(self, path: str, metadata: Any) -> pyarrow.NativeFile:
        return self.inner.open_append_stream(path, metadata=metadata)


def _bookkeeping(path: str) -> fs.FileInfo | None:
    """The state of one of Ray's own files: the marker exists, the snapshot does not."""
    name = path.rpartition("/")[2]
    if name == VALIDATE_STORAGE_MARKER_FILENAME:
        return fs.FileInfo(path, fs.FileType.File, size=0)
    if name == CHECKPOINT_MANAGER_SNAPSHOT_FILENAME:
        return fs.FileInfo(path, fs.FileType.NotFound)
    return None
