"""The upload of one checkpoint from a worker to the bucket, concurrent with training."""

import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from ray.train import Checkpoint

from ..ray_internals import training
from ..ray_internals.filesystem import SessionCheckpoint
from ..store.bucket import Bucket
from ..store.storage_retry import StorageRetry
from . import snapshot, streamed_files
from .background import behind_training


class CheckpointUpload:
    """Uploads one checkpoint's files from memory, in Ray's upload thread.

    It waits for a store that does not answer, and keeps the files until they are uploaded. Training
    goes on meanwhile and makes no other checkpoint: one copy waits at most.

    Args:
        step: steps done when it was made.
        files: bytes, or what `torch.save` writes, by name; nobody changes it meanwhile.
        bucket: the run's folder.
        rank: of this process.
        retry: repeats what the store does not answer.
        before_end: called once the files are uploaded, before Ray is told so; does not raise.
    """

    def __init__(
        self,
        step: int,
        files: dict[str, Any],
        bucket: Bucket,
        rank: int,
        retry: StorageRetry,
        before_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._step, self._files, self._bucket, self._rank = step, files, bucket, rank
        self._retry, self._before_end = retry, before_end
        # Ray asks for one; what is uploaded is not in it.
        self._empty = tempfile.TemporaryDirectory(prefix="checkpoint-", ignore_cleanup_errors=True)
        self.folder = self._empty.name
        self.name = ""
        """Of the checkpoint's folder; known once it is uploaded."""
        self.done = False
        self.seconds = 0.0
        self._began = time.monotonic()
        self._finished = threading.Event()

    def __call__(self, checkpoint: Checkpoint, name: str) -> Checkpoint:
        """Upload it under that name; Ray's upload thread calls this."""
        self.name = name
        try:
            uploaded = training.stored(name)
            key = self._bucket.key_of(uploaded.path)
            behind_training(lambda: snapshot.require_readable(self._files))
            behind_training(
                lambda: streamed_files.upload(
                    self._bucket, key, self._files, self._rank, self._retry
                )
            )
            self._files = {}
            self._empty.cleanup()
            self._before_end()
        finally:
            self.seconds = time.monotonic() - self._began
            self.done = True
            self._finished.set()
        return SessionCheckpoint(uploaded.path, uploaded.filesystem, self._step)

    @property
    def seconds_so_far(self) -> float:
        """What it took since the state was copied, or has taken by now."""
        return self.seconds if self.done else time.monotonic() - self._began

    def wait(self) -> None:
        """Return once the upload has ended, well or not."""
        self._finished.wait()
