"""Tells the coordinator where this rank stands, once it has not moved for some seconds."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import user_frames
from ..coordinator.standstill import Spot, Stand

CHECK_EVERY_S = 1.0
TOLD_AFTER_S = 10.0
"""Seconds after which a standstill is told: a rank that moves causes no calls."""


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
        self._waiting: Stand | None = None
        self._seen: Stand | None = None
        self._since, self._told = time.monotonic(), False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="standstill", daemon=True)
        self._thread.start()

    @contextmanager
    def waiting(self, spot: Spot, where: str = "", steps: int = 0) -> Iterator[None]:
        """Meanwhile the training thread waits for other ranks."""
        self._waiting = Stand(spot, where, steps)
        try:
            yield
        finally:
            self._waiting = None

    def returned(self) -> None:
        """The training function has returned; nothing more is told."""
        self._ended.set()
        self._thread.join()  # what it tells last comes first
        self._tell(Stand(Spot.RETURNED), 0.0)

    def close(self) -> None:
        """The training function has raised: nothing more is told."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(CHECK_EVERY_S):
            stand = self._waiting or self._line()
            # Each wait is another object, also at the same place.
            same = stand is self._seen if self._waiting else stand == self._seen
            if not same:
                if self._told:
                    self._tell(None, 0.0)
                self._seen, self._since, self._told = stand, time.monotonic(), False
            stood_s = time.monotonic() - self._since
            if stand is not None and not self._told and stood_s >= TOLD_AFTER_S:
                self._tell(stand, stood_s)
                self._told = True

    def _line(self) -> Stand | None:
        """The line of the user's code on which the training thread is."""
        frame = user_frames.line_under_way(sys._current_frames().get(self._training))
        if frame is None:
            return None
        code = frame.f_code
        where = f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
        return Stand(Spot.CODE, where)

    def _tell(self, stand: Stand | None, stood_s: float) -> None:
        self._coordinator.stands.remote(self._rank, self._group, stand, stood_s)
