"""The upload of one checkpoint from a worker to the bucket, concurrent with training."""

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.train import Checkpoint

from ..ray_internals import training
from . import snapshot
from .background import behind_training
from .storage_retry import StorageRetry


class CheckpointUpload:
    """Writes one checkpoint's files and uploads them, in Ray's upload thread.

    It waits for a store that does not answer, and keeps the files until they are uploaded. Training
    goes on meanwhile and makes no other checkpoint: one copy waits at most.

    Args:
        files: what to write, by name.
        retry: repeats what the store does not answer.
        before_end: called once the files are uploaded, before Ray is told so; does not raise.
    """

    def __init__(
        self,
        files: dict[str, Any],
        retry: StorageRetry,
        before_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._files, self._retry, self._before_end = files, retry, before_end
        self._temporary = tempfile.TemporaryDirectory(
            prefix="checkpoint-", ignore_cleanup_errors=True
        )
        self.folder = self._temporary.name
        self.name = ""
        """Of the checkpoint's folder; known once it is uploaded."""
        self.done = False
        self.seconds = 0.0
        self._began = time.monotonic()
        self._finished = threading.Event()

    def __call__(self, checkpoint: Checkpoint, name: str) -> Checkpoint:
        """Write and upload it under that name; Ray's upload thread calls this."""
        self.name = name
        try:
            self._retry(lambda: behind_training(self._write))
            self._files = {}  # a copy on disk is enough, however long it waits there
            context = training.train_context()
            uploaded = context.storage_context.persist_current_checkpoint(checkpoint, name)
            self._temporary.cleanup()
            self._before_end()
        finally:
            self.seconds = time.monotonic() - self._began
            self.done = True
            self._finished.set()
        return uploaded

    def _write(self) -> None:
        snapshot.write(self._files, Path(self.folder))

    @property
    def seconds_so_far(self) -> float:
        """What it took since the state was copied, or has taken by now."""
        return self.seconds if self.done else time.monotonic() - self._began

    def wait(self) -> None:
        """Return once the upload has ended, well or not."""
        self._finished.wait()
