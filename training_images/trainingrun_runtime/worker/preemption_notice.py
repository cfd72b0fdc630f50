"""Preemption notices: a pod or node is about to end, announced by the preStop hook or by Ray.

The pod's preStop hook writes a file and waits for another one (see
`training_images/bin/trainingrun-prestop`), because starting Python would take a second of the grace
period. A folder has the ids of the processes that handle the notice, one for each worker in the
pod. All of it is in `state_directory()`.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from trainingrun_protocol.contract import PREEMPTION_NOTICE_FILE, SAVED_FILE, WATCHERS_FOLDER

from ..state_directory import state_directory

log = logging.getLogger(__name__)

POLL_S = 0.1
_AGAIN_S = 1.0
"""Seconds after which a notice is tried again that could not be read or answered."""


@dataclass(frozen=True)
class PreemptionNotice:
    """A pod or node ends at `deadline`."""

    deadline: float
    """Unix time in seconds."""
    pre_stop: bool
    """Whether a preStop hook keeps the pod until the checkpoint is committed."""


def checkpoint_at(notice: PreemptionNotice, save_seconds: float) -> float:
    """When to make the checkpoint for a notice, in Unix seconds.

    A pod with a preStop hook ends as soon as the checkpoint is committed, so it is made at once and
    the replacement starts sooner. Without one the node stays until the deadline and training goes
    on; the time of two checkpoints as slow as the last one is kept free.

    Args:
        notice: of this pod or of a node of the worker group.
        save_seconds: what the last checkpoint took.
    """
    if notice.pre_stop:
        return 0.0
    return notice.deadline - max(5.0, 2 * save_seconds)


class PreemptionNoticeWatcher:
    """Watches for this pod's notice in a thread.

    Args:
        on_notice: called with the notice, in the watcher's thread, until it raises no error.
    """

    def __init__(self, on_notice: Callable[[PreemptionNotice], None]) -> None:
        self._folder = state_directory()
        self._entry = self._folder / WATCHERS_FOLDER / str(os.getpid())
        self._on_notice = on_notice
        self._stop = threading.Event()
        self.notice: PreemptionNotice | None = None
        """The pod's own notice, once there is one."""
        self._thread = threading.Thread(target=self._watch, name="preemption-notice", daemon=True)

    def start(self) -> None:
        """Start to watch; from now on the preStop hook waits for `confirm_saved`."""
        self._entry.parent.mkdir(exist_ok=True)
        for entry in self._entry.parent.iterdir():
            if not _is_alive(int(entry.name)):  # it was killed, and its id is given out again
                entry.unlink(missing_ok=True)
        self._entry.touch()
        self._thread.start()

    def confirm_saved(self) -> None:
        """The checkpoint is committed: the preStop hook may end."""
        (self._folder / SAVED_FILE).touch()

    def stop(self) -> None:
        """Stop watching: a preStop hook ends at once, unless another process of the pod watches."""
        self._stop.set()
        self._entry.unlink(missing_ok=True)

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            try:
                text = (self._folder / PREEMPTION_NOTICE_FILE).read_text().strip()
            except FileNotFoundError:
                continue
            except (OSError, UnicodeError) as error:
                log.warning("a preemption notice cannot be read: %s", error)
                self._stop.wait(_AGAIN_S)
                continue
            if not text:
                continue  # created, not written yet
            try:
                deadline = float(text)
            except ValueError:
                deadline = time.time() + 30
            self.notice = PreemptionNotice(deadline=deadline, pre_stop=True)
            try:
                self._on_notice(self.notice)
            except Exception:  # the node goes away whatever keeps the answer from being given
                log.exception("a preemption notice was not answered; it is tried again")
                self._stop.wait(_AGAIN_S)
                continue
            return


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
