"""Rank 0's line to the board: a thread, so that a slow head never slows a step."""

import logging
import threading
import time
from typing import Any

import ray

from ..coordination.coordinator import NOTHING
from .time_accounting import StepReport

log = logging.getLogger(__name__)

INTERVAL_S = 0.25


class Reporter:
    """Sends the newest report some times a second and keeps the board's latest order.

    Args:
        board: handle of the `Board` actor.
    """

    def __init__(self, board: Any) -> None:
        self.order = NOTHING
        """What the board last said is to be done."""
        self._board = board
        self._latest: StepReport | None = None
        self._changed = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        self._thread.start()

    def tell(self, report: StepReport) -> None:
        """A step was done."""
        self._latest = report
        self._changed.set()

    def close(self) -> None:
        """Send the last report."""
        self._closed = True
        self._changed.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._closed:
            # The board is asked even when no step was done: an order must reach a rank that waits.
            self._changed.wait(1.0)
            self._changed.clear()
            self._send()
            time.sleep(INTERVAL_S)
        self._send()

    def _send(self) -> None:
        report = self._latest
        if report is None:
            return
        try:
            self.order = ray.get(self._board.stepped.remote(report), timeout=10)
        except Exception as error:  # progress is a courtesy: training goes on without it
            log.warning("the board cannot be reached: %s", error)
