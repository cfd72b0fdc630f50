"""Reports rank 0's steps to the coordinator in a thread: a slow head does not slow a step."""

import logging
import threading
import time
from typing import Any

import ray

from ..coordination.command import Command
from .time_accounting import StepReport

log = logging.getLogger(__name__)

INTERVAL_S = 0.25


class StepReporter:
    """Sends the newest report every `INTERVAL_S` and keeps the latest command.

    Args:
        coordinator: handle of the `Coordinator` actor.
    """

    def __init__(self, coordinator: Any) -> None:
        self.command = Command.NONE
        """The coordinator's latest command."""
        self._coordinator = coordinator
        self._latest: StepReport | None = None
        self._changed = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        self._thread.start()

    def report(self, report: StepReport) -> None:
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
            # Also without a new step: a command must reach a rank that waits.
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
            self.command = ray.get(self._coordinator.stepped.remote(report), timeout=10)
        except Exception as error:  # progress is best effort: training goes on without it
            log.warning("the coordinator cannot be reached: %s", error)
