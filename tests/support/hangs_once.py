"""The linear example, in which a rank hangs once at each of two steps."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainingrun_runtime.examples import linear
from trainingrun_runtime.examples.pacing import Pace

LOOP_AT, LOCK_AT = 40, 60
"""Steps before which rank 1 loops without end, and rank 0 waits for a lock that it has."""


def train(config: dict[str, Any]) -> None:
    """`markers` of the config is a folder, in which each hang leaves a file."""
    markers = Path(config.pop("markers"))
    hangs: dict[tuple[int, int], Callable[[], None]] = {(1, LOOP_AT): loop, (0, LOCK_AT): lock}

    class Hanging(Pace):
        def __init__(self, seconds: float, rank: int) -> None:
            super().__init__(seconds, rank)
            self._rank, self._done = rank, -1

        def wait(self) -> None:
            super().wait()
            hang = hangs.get((self._rank, self._done))
            if hang is None:
                return
            marker = markers / hang.__name__
            if not marker.exists():
                marker.touch()
                hang()

        def __call__(self, step: int) -> None:
            super().__call__(step)
            self._done = step + 1

    linear.Pace = Hanging  # type: ignore[attr-defined]
    linear.train(config)


def loop() -> None:
    """Computes without end."""
    while True:
        pass


def lock() -> None:
    """Waits for a lock that this thread has itself."""
    held = threading.Lock()
    with held:
        held.acquire()
