"""Checkpoints from a request for one, over their upload, to their commit by the driver."""

import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from ..store.reported_metrics import Row

JUST_S = 3.0
"""Seconds after a commit in which little is done that the checkpoint lacks."""
_DONE = 1000
"""Names kept of checkpoints that were committed or abandoned; a rank requests its newest one."""


class Command(IntEnum):
    """A command to all ranks; where ranks request different ones, the largest applies."""

    NONE = 0
    CHECKPOINT = 1
    """Make a checkpoint and continue."""
    RESIZE = 2
    """Make a checkpoint, wait for its commit and end the worker group; a larger one follows."""
    CHECKPOINT_AND_EXIT = 3
    """The same, where a pod ends; a new one follows."""
    SUSPEND = 4
    """The same, and no worker group follows."""


@dataclass(frozen=True)
class UploadedCheckpoint:
    """A checkpoint that all ranks have uploaded and that is not committed yet."""

    path: str
    """Its folder, as Ray names it: bucket and key, or the local path."""
    step: int
    """Steps done when it was made."""
    world_size: int
    """Workers that made it."""
    metrics: dict[str, Any]
    """Rank 0's, as reported with it."""
    group: int = field(default=0, compare=False)
    """Number of the worker group that made it, within the driver."""
    rows: tuple[Row, ...] = ()
    """Of a checkpoint that one rank alone has made: its newest reports."""
    ranks: tuple[int, ...] | None = None
    """Those that have uploaded a part with digests; None: unknown."""
    session: bool = False
    """Whether a session made it."""
    validated: bool = False
    """Whether a validation of Ray reads it, whose scores come later."""


@dataclass(frozen=True)
class LateMetrics:
    """Metrics that rank 0 reported after the checkpoint of their step was uploaded."""

    step: int
    """Steps done when they were reported."""
    metrics: dict[str, Any]
    """As JSON can carry them."""
    path: str | None = None
    """Folder of their checkpoint, as Ray names it; none: it is the newest one of the step."""


class Checkpoints:
    """Uploads in the order of their completion, metrics for former ones, and the command.

    One condition guards all of it; only `next_upload` waits, and releases it meanwhile.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._command = Command.NONE
        self._group = 0
        self._saved_step = 0  # the newest one of the worker group that is committed
        self._commits, self._committed_at = 0, float("-inf")
        self._waiting: deque[UploadedCheckpoint | LateMetrics] = deque()
        self._early: dict[int, dict[str, Any]] = {}  # step -> metrics, until it is uploaded
        self._done: deque[tuple[str, bool]] = deque(maxlen=_DONE)  # name, whether committed
        self._validating: dict[str, tuple[int, int]] = {}  # path -> (step, worker group)

    def begin(self, group: int, step: int) -> None:
        """A worker group begins from the checkpoint of this step."""
        with self._changed:
            self._group, self._saved_step, self._early = group, step, {}
            if self._command in (Command.RESIZE, Command.CHECKPOINT_AND_EXIT):
                self._command = Command.NONE

    def request(self, command: Command) -> None:
        """The driver: have the workers execute a command.

        RESIZE is left out while nothing can be committed: a group that makes a checkpoint for it
        goes on, would be asked again after its next step, and would do little else.
        """
        with self._changed:
            if command is not Command.RESIZE or self.newest_is_committed():
                self._command = max(self._command, command)

    def withdraw(self) -> None:
        """Ray's controller: no larger worker group can follow any longer."""
        with self._changed:
            if self._command is Command.RESIZE:
                self._command = Command.NONE

    @property
    def command(self) -> Command:
        """What applies now."""
        return self._command

    @property
    def saved_step(self) -> int:
        """Newest step of the worker group that is committed, or uploaded and not abandoned."""
        with self._changed:
            uploads = [one for one in self._waiting if isinstance(one, UploadedCheckpoint)]
            waiting = [one.step for one in uploads if one.group == self._group]
            return max(self._saved_step, *waiting, 0)

    def uploaded(self, upload: UploadedCheckpoint) -> None:
        """Ray's controller: all ranks have uploaded their part of a checkpoint."""
        with self._changed:
            if upload.validated:
                self._validating[upload.path] = (upload.step, self._group)
            metrics = {**upload.metrics, **self._early.pop(upload.step, {})}
            self._add(replace(upload, metrics=metrics, group=self._group))

    def measured(self, step: int, metrics: dict[str, Any]) -> None:
        """Rank 0: metrics of the last step, whose checkpoint may be uploaded or not yet."""
        with self._changed:
            if step > self.saved_step:
                self._early[step] = {**self._early.get(step, {}), **metrics}
                return
            # Each is some 20 requests of the driver, and code may report many before the next step.
            # The first one is left as it is: the driver may have it.
            last = self._waiting[-1] if len(self._waiting) > 1 else None
            if isinstance(last, LateMetrics) and (last.step, last.path) == (step, None):
                self._waiting[-1] = replace(last, metrics={**last.metrics, **metrics})
            else:
                self._add(LateMetrics(step, metrics))

    def validated(self, path: str, scores: dict[str, Any]) -> tuple[int, int] | None:
        """A validation of the checkpoint in this folder has ended; no scores: it has failed.

        Returns:
            Step and worker group of the checkpoint, where it is scored and of the group that
            trains.
        """
        with self._changed:
            step, group = self._validating.pop(path, (0, 0))
            if not group or not scores:
                return None
            self._add(LateMetrics(step, scores, path))
            return (step, group) if group == self._group else None

    def in_use(self) -> tuple[int, list[str]]:
        """The driver: the worker group that trains, and which folders are not to be deleted.

        Those are of checkpoints that a validation still reads, and of uploads that are neither
        committed nor abandoned: all of them that former groups have completed.
        """
        with self._changed:
            uploads = [one.path for one in self._waiting if isinstance(one, UploadedCheckpoint)]
            return self._group, [*self._validating, *uploads]

    def next_upload(self, wait_s: float) -> UploadedCheckpoint | LateMetrics | None:
        """The driver: the oldest upload that is neither committed nor abandoned.

        It may also be metrics for a checkpoint that was uploaded before; see `attached`. None if
        there is neither within `wait_s` seconds.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting, wait_s)
            return self._waiting[0] if self._waiting else None

    def uploads_waiting(self) -> int:
        """How many uploads are neither committed nor abandoned, and metrics not attached."""
        return len(self._waiting)

    def committed(self, upload: UploadedCheckpoint) -> None:
        """An upload has a manifest now."""
        with self._changed:
            self._commits, self._committed_at = self._commits + 1, time.monotonic()
            if upload.group == self._group:
                self._saved_step = max(self._saved_step, upload.step)
            self._processed(upload, committed=True)

    def commits(self) -> int:
        """How many checkpoints this driver has committed."""
        return self._commits

    def just_committed(self) -> bool:
        """Whether all that was uploaded is committed, and the newest of it a moment ago."""
        with self._changed:
            return not self._waiting and time.monotonic() - self._committed_at < JUST_S

    def abandoned(self, upload: UploadedCheckpoint) -> None:
        """The driver: an upload is not waited for any longer."""
        with self._changed:
            self._processed(upload, committed=False)
            if self._command is Command.RESIZE:
                self._command = Command.NONE

    def attached(self, late: LateMetrics) -> None:
        """The driver: the metrics are added to their checkpoint, or cannot be."""
        with self._changed:
            self._waiting.remove(late)

    def is_committed(self, name: str) -> bool | None:
        """Whether the checkpoint in the folder of this name was committed, or abandoned.

        None: neither yet.
        """
        with self._changed:
            return next((committed for done, committed in self._done if done == name), None)

    def newest_is_committed(self) -> bool:
        """Whether the newest upload of those processed was committed, or there was none."""
        with self._changed:
            return self._done[-1][1] if self._done else True

    def _processed(self, upload: UploadedCheckpoint, *, committed: bool) -> None:
        self._waiting.remove(upload)
        self._done.append((upload.path.rpartition("/")[2], committed))

    def _add(self, one: UploadedCheckpoint | LateMetrics) -> None:
        self._waiting.append(one)
        self._changed.notify_all()
