"""The linear example, in which a rank hangs once before each of some steps.

Before a step: a rank that is lost between its last exchange and its step's end costs that step.
"""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainingrun_runtime.examples import linear
from trainingrun_runtime.examples.repeatable import Pace

LOOP_AT, LOCK_AT = 40, 60
"""Steps before which rank 1 loops without end, and rank 0 waits for a lock that it has."""
STOP = "stop-rank-1"
"""Rank 1 is stopped before its next step once the folder of markers has this file."""


def train(config: dict[str, Any]) -> None:
    """`markers` of the config is a folder, in which each hang leaves a file; `hangs`: its steps."""
    markers, wanted = Path(config.pop("markers")), config.pop("hangs", [])
    each: list[tuple[int, int, Callable[[], None]]] = [(1, LOOP_AT, loop), (0, LOCK_AT, lock)]
    hangs = {(rank, step): hang for rank, step, hang in each if step in wanted}

    class Hanging(Pace):
        def __init__(self, seconds: float, rank: int) -> None:
            super().__init__(seconds, rank)
            self._rank, self._done = rank, -1

        def wait(self) -> None:
            super().wait()
            if self._rank == 1 and (markers / STOP).exists():
                self._once(stop)
            if hang := hangs.get((self._rank, self._done)):
                self._once(hang)

        def _once(self, hang: Callable[[], None]) -> None:
            marker = markers / hang.__name__
            if not marker.exists():
                marker.touch()
                hang()

        def __call__(self, step: int) -> None:
            super().__call__(step)
            self._done = step + 1

    linear.Pace = Hanging  # type: ignore[attr-defined]
    linear.train(config)


def stop() -> None:
    """Is stopped, as by a debugger."""
    os.kill(os.getpid(), signal.SIGSTOP)


def loop() -> None:
    """Computes without end."""
    while True:
        pass


def lock() -> None:
    """Waits for a lock that this thread has itself."""
    held = threading.Lock()
    with held:
        held.acquire()
