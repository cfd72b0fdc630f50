"""Checkpoints that were uploaded and wait for the driver to commit them."""

import threading
from collections import deque
from dataclasses import replace
from typing import Any

from ..store.uploaded_checkpoint import LateMetrics, UploadedCheckpoint

_SETTLED = 1000
"""Names kept of checkpoints that were committed or abandoned; a rank requests its newest one."""


class UploadQueue:
    """Uploads in the order of their completion, and metrics for those that came before."""

    def __init__(self) -> None:
        self.saved_step = 0
        """Newest step of the worker group that is in the bucket."""
        self._waiting: deque[UploadedCheckpoint | LateMetrics] = deque()
        self._early: dict[int, dict[str, Any]] = {}  # step -> metrics, until it is uploaded
        self._settled: deque[str] = deque(maxlen=_SETTLED)
        self._added = threading.Condition()

    def __len__(self) -> int:
        """How many uploads are neither committed nor abandoned, and metrics not attached."""
        return len(self._waiting)

    def begin(self, step: int) -> None:
        """A worker group begins from the checkpoint of this step."""
        with self._added:
            self.saved_step, self._early = step, {}

    def add(self, upload: UploadedCheckpoint) -> None:
        """All ranks have uploaded their part of a checkpoint."""
        with self._added:
            self.saved_step = max(self.saved_step, upload.step)
            metrics = {**upload.metrics, **self._early.pop(upload.step, {})}
            self._waiting.append(replace(upload, metrics=metrics))
            self._added.notify_all()

    def add_metrics(self, step: int, metrics: dict[str, Any]) -> None:
        """Metrics for the checkpoint of a step, which may be uploaded or not yet."""
        with self._added:
            if step > self.saved_step:
                self._early[step] = {**self._early.get(step, {}), **metrics}
            else:
                self._waiting.append(LateMetrics(step, metrics))
                self._added.notify_all()

    def add_scores(self, late: LateMetrics) -> None:
        """Metrics for a checkpoint that was uploaded before, which may be of a former group."""
        with self._added:
            self._waiting.append(late)
            self._added.notify_all()

    def next(self, wait_s: float) -> UploadedCheckpoint | LateMetrics | None:
        """The oldest one; None if there is none within `wait_s` seconds."""
        with self._added:
            self._added.wait_for(lambda: self._waiting, wait_s)
            return self._waiting[0] if self._waiting else None

    def attached(self, late: LateMetrics) -> None:
        """The metrics are added to their checkpoint, or cannot be."""
        with self._added:
            self._waiting.remove(late)

    def settle(self, upload: UploadedCheckpoint) -> None:
        """An upload is committed, or abandoned."""
        with self._added:
            self._waiting.remove(upload)
            self._settled.append(upload.path.rpartition("/")[2])

    def settled(self, name: str) -> bool:
        """Whether the checkpoint in the folder of this name was committed or abandoned."""
        return name in self._settled
