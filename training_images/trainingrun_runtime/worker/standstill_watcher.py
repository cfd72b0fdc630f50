"""Tells the coordinator where this rank is, once it has not moved for some seconds."""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import stacks
from ..coordinator.standstill import At, Location

log = logging.getLogger(__name__)

CHECK_EVERY_S = 1.0
TOLD_AFTER_S = 10.0
"""Seconds after which a standstill is told: a rank that moves causes no calls."""
BLOCKED_CPU_S = 0.001
"""CPU time that a thread may use between two checks and still count as blocked."""


class StandstillWatcher:
    """Looks at the training thread once a second, from a thread of its own.

    Args:
        coordinator: handle of the `Coordinator` actor.
        rank: of this process.
        group: number of the worker group.

    It is made in the training thread.
    """

    def __init__(self, coordinator: Any, rank: int, group: int) -> None:
        self._coordinator, self._rank, self._group = coordinator, rank, group
        self._training = threading.get_ident()
        self._cpu_clock = (
            None if sys.platform == "darwin" else time.pthread_getcpuclockid(self._training)
        )
        self._waiting: Location | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="standstill", daemon=True)
        self._thread.start()

    @contextmanager
    def waiting(self, at: At, where: str = "", steps: int = 0) -> Iterator[None]:
        """Meanwhile the training thread waits for other ranks."""
        self._waiting = Location(at, where, steps)
        try:
            yield
        finally:
            self._waiting = None

    def returned(self) -> None:
        """The training function has returned; nothing more is told."""
        self._ended.set()
        self._thread.join()  # what it tells last comes first
        self._tell(Location(At.RETURNED), 0.0)

    def close(self) -> None:
        """The training function has raised: nothing more is told."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                self._keep_looking()
            except Exception:
                log.exception("where this rank stands was not told")
                self._ended.wait(CHECK_EVERY_S)

    def _keep_looking(self) -> None:
        seen: Location | None = None
        told: Location | None = None
        since = busy = time.monotonic()
        cpu_before_s = self._cpu_s()
        while not self._ended.wait(CHECK_EVERY_S):
            now, cpu_s, waiting = time.monotonic(), self._cpu_s(), self._waiting
            location = waiting or self._line()
            # Each wait is another object, also at the same place.
            same = location is seen if waiting else location == seen
            if not same:
                if told is not None:
                    self._tell(None, 0.0)
                seen, since, told = location, now, None
            if not same or cpu_s - cpu_before_s > BLOCKED_CPU_S:
                busy = now
            cpu_before_s = cpu_s
            if location is None or now - since < TOLD_AFTER_S:
                continue
            blocked = location.at is At.CODE and now - busy >= TOLD_AFTER_S
            shown = replace(location, blocked=blocked)
            if shown != told:
                self._tell(shown, now - (busy if blocked else since))
                told = shown

    def _cpu_s(self) -> float:
        """CPU time that the training thread has used; where no clock tells, it counts as busy."""
        if self._cpu_clock is not None:
            with suppress(OSError):  # the thread has ended
                return time.clock_gettime(self._cpu_clock)
        return time.monotonic()

    def _line(self) -> Location | None:
        """The line of the user's code on which the training thread is."""
        frame = stacks.line_under_way(sys._current_frames().get(self._training))
        if frame is None:
            return None
        code = frame.f_code
        where = f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
        return Location(At.CODE, where)

    def _tell(self, location: Location | None, seconds: float) -> None:
        self._coordinator.rank_location.remote(self._rank, self._group, location, seconds)
