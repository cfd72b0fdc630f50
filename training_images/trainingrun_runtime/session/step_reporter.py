"""Reports steps to the coordinator: a slow head does not slow a step."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ray

from ..coordinator.checkpoints import Command
from ..progress.rank_reporter import ReportRecorder
from ..progress.time_accounting import StepReport

log = logging.getLogger(__name__)

INTERVAL_S = 0.25
_REMEMBERED = 100
"""Calls that `close` waits for; older ones have arrived long before."""


class StepReporter:
    """Sends the newest report every `INTERVAL_S` and keeps the latest command.

    Args:
        coordinator: handle of the `Coordinator` actor.
        recorder: what this rank reports, to be sent in the same intervals.
        in_step: whether the rank is in a step now.
        rated_by: metric by which trials of a sweep are compared, if this is one.
    """

    def __init__(
        self,
        coordinator: Any,
        recorder: ReportRecorder,
        rated_by: str | None = None,
        in_step: Callable[[], bool] = lambda: False,
    ) -> None:
        self._in_step = in_step
        self._rated_by = rated_by
        self._rating: tuple[int, Any] | None = None
        self.command = Command.NONE
        """The coordinator's latest command."""
        self._coordinator, self._recorder = coordinator, recorder
        self._latest: StepReport | None = None
        self._changed = threading.Event()
        self._measured: deque[Any] = deque(maxlen=_REMEMBERED)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        self._thread.start()

    def report(self, report: StepReport) -> None:
        """A step was done."""
        self._latest = report
        if not self._changed.is_set():  # to set it again takes its lock all the same
            self._changed.set()

    def rate(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Metrics were reported; the newest ones that trials are compared by are sent."""
        if self._rated_by is not None and self._rated_by in metrics:
            self._rating = (step, metrics[self._rated_by])

    def measured(self, step: int, metrics: dict[str, Any]) -> None:
        """Metrics of the last step, whose checkpoint was made before; nothing waits for them."""
        self._measured.append(self._coordinator.measured.remote(step, metrics))

    def close(self) -> None:
        """Send the last report; return once all metrics have arrived."""
        ray.get(list(self._measured))
        self._closed = True
        self._changed.set()
        self._thread.join(timeout=10)
        self._recorder.flush()

    def _run(self) -> None:
        while not self._closed:
            # Also without a new step: a command must reach a rank that waits.
            self._changed.wait(1.0)
            self._changed.clear()
            self._send()
            time.sleep(INTERVAL_S)
        self._send()

    def _send(self) -> None:
        try:
            self._recorder.send()
            rating, self._rating = self._rating, None
            if rating is not None:
                self._coordinator.rated.remote(*rating)
            report = self._latest
            if report is None:
                return
            told = replace(report, in_step=self._in_step())
            self.command = ray.get(self._coordinator.stepped.remote(told), timeout=10)
        except Exception as error:  # progress is best effort: training goes on without it
            log.warning("the coordinator cannot be reached: %s", error)
