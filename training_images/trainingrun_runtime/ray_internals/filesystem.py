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

from ..store.bucket import Bucket
from ..store.bucket_files import BucketFiles
from ..store.storage_errors import AbsentError, StorageError
from ..store.storage_retry import StorageRetry


def for_ray(bucket: Bucket) -> fs.PyFileSystem:
    """The filesystem for Ray: its own files work while the store does not answer."""
    return fs.PyFileSystem(_CheckpointsOnly(bucket))


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


class _CheckpointsOnly(BucketFiles):
    """The bucket, except Ray's own files, which are not stored."""

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [_bookkeeping(path) or self._info(path) for path in paths]

    def open_output_stream(self, path: str, metadata: Any) -> pyarrow.NativeFile:
        if _bookkeeping(path) is not None:
            return pyarrow.BufferOutputStream()
        return super().open_output_stream(path, metadata)


def _bookkeeping(path: str) -> fs.FileInfo | None:
    """The state of one of Ray's own files: the marker exists, the snapshot does not."""
    name = path.rpartition("/")[2]
    if name == VALIDATE_STORAGE_MARKER_FILENAME:
        return fs.FileInfo(path, fs.FileType.File, size=0)
    if name == CHECKPOINT_MANAGER_SNAPSHOT_FILENAME:
        return fs.FileInfo(path, fs.FileType.NotFound)
    return None
