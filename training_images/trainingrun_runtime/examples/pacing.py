"""Slows an example down on purpose, and notes when its steps were done."""

import os
import time
from pathlib import Path

JOURNAL_ENV = "STEP_LOG_FOLDER"
"""If set, rank 0 appends `<Unix time> <steps done>` per step to `<folder>/<pod>.log`, from which
the seconds without training and the steps lost can be counted afterwards."""
PACE_FILE = "pace"
"""If that folder has such a file, the number in it replaces the seconds per step at once: a test
then makes a run last until it has done with it."""


class Pace:
    """At least so many seconds per step, so that a demonstration can interrupt a small model.

    Call `wait` at the beginning of every step, and itself at the end.
    """

    def __init__(self, seconds: float, rank: int) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        folder = os.environ.get(JOURNAL_ENV) if rank == 0 else None
        pod = os.environ.get("POD_NAME", f"process-{os.getpid()}")
        self._journal = Path(folder) / f"{pod}.log" if folder else None
        self._pace_file = Path(folder) / PACE_FILE if folder else None

    def wait(self) -> None:
        """Wait until the last step has taken long enough.

        Not at its end: the time between the ranks' last exchange and a step's end is short in
        practice, and a rank that dies in it leaves a step that is half done.
        """
        time.sleep(max(0.0, self._began + self._wanted() - time.monotonic()))
        self._began = time.monotonic()

    def __call__(self, step: int) -> None:
        """`step` (counted from 0) is done."""
        if self._journal:
            with self._journal.open("a") as lines:
                lines.write(f"{time.time()} {step + 1}\n")

    def _wanted(self) -> float:
        if self._pace_file and self._pace_file.exists():
            self._seconds = float(self._pace_file.read_text())
        return self._seconds
