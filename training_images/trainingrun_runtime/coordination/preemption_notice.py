"""The notice that a pod is about to go away, from the preStop hook or from Ray.

The preStop hook of the pod writes a file and then waits for another one (see
`training_images/bin/trainingrun-prestop`): no Python starts in a pod that has seconds to live.
A process that answers the notice says so by a third file. All three are in `state_folder()`.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainingrun.api.contract import NOTICE_FILE, SAVED_FILE, STATE_DIRECTORY, WATCHER_FILE

STATE_FOLDER_ENV = "TRAININGRUN_STATE_DIRECTORY"
POLL_S = 0.1


def state_folder() -> Path:
    """The folder by which the processes of this pod talk; made where it is missing."""
    folder = Path(os.environ.get(STATE_FOLDER_ENV, STATE_DIRECTORY))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True)
class Notice:
    """A pod or node goes away at `deadline` (Unix seconds)."""

    deadline: float
    waits: bool
    """Whether a preStop hook holds the pod until the checkpoint is committed."""


def leave_at(notice: Notice, save_seconds: float) -> float:
    """When to make the checkpoint for a notice, in Unix seconds.

    A pod that waits for us leaves as soon as it is saved: its replacement starts all the sooner.
    One that stays until the deadline whatever we do trains on meanwhile, and leaves room for two
    checkpoints as slow as the last one.
    """
    if notice.waits:
        return 0.0
    return notice.deadline - max(5.0, 2 * save_seconds)


class NoticeWatcher:
    """Watches for this pod's notice in a thread of its own.

    Args:
        answered: called once with the notice, in the watcher's thread.
    """

    def __init__(self, answered: Callable[[Notice], None]) -> None:
        self._folder = state_folder()
        self._answer = answered
        self._stop = threading.Event()
        self.notice: Notice | None = None
        """The pod's own notice, once there is one."""
        self._thread = threading.Thread(target=self._watch, name="notice-watcher", daemon=True)

    def start(self) -> None:
        """Begin to watch; from now on the preStop hook waits for `saved`."""
        (self._folder / WATCHER_FILE).write_text(str(os.getpid()))
        self._thread.start()

    def saved(self) -> None:
        """What this pod had to save is committed: its preStop hook may end."""
        (self._folder / SAVED_FILE).touch()

    def stop(self) -> None:
        """Nobody answers a notice any more: a preStop hook ends at once."""
        self._stop.set()
        (self._folder / WATCHER_FILE).unlink(missing_ok=True)

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            try:
                text = (self._folder / NOTICE_FILE).read_text().strip()
            except FileNotFoundError:
                continue
            if not text:
                continue  # created, not written yet
            deadline = float(text) if _is_number(text) else time.time() + 30
            self.notice = Notice(deadline=deadline, waits=True)
            self._answer(self.notice)
            return


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
