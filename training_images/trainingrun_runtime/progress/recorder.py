"""Keeps what a rank reports, and has rank 0 send it to the coordinator in the background."""

import logging
import threading
import time
from collections import deque
from typing import Any

import ray

from ..store.metrics_rows import Row

log = logging.getLogger(__name__)

RECENT = 1000
"""Newest rows that each rank keeps, for the case that rank 0 is lost before it has sent its own."""
_UNSENT = 100_000
"""Rows that wait on rank 0 at most, while the coordinator does not answer."""
_PENDING = 100
"""Calls that `flush` waits for; older ones have arrived long before."""
_FLUSH_S = 10.0


class ReportRecorder:
    """The reports of one rank. Training only appends to a queue in memory.

    Args:
        coordinator: handle of the `Coordinator` actor.
        rank: of this process.
        group: number of the worker group.
    """

    def __init__(self, coordinator: Any, rank: int, group: int) -> None:
        self._coordinator, self._group, self._sends = coordinator, group, rank == 0
        self._recent: deque[Row] = deque(maxlen=RECENT)
        self._unsent: deque[Row] = deque(maxlen=_UNSENT)
        self._pending: deque[Any] = deque(maxlen=_PENDING)
        self._sending = threading.Lock()
        if self._sends:
            coordinator.session_began.remote(group)

    def record(self, step: int, metrics: dict[str, Any]) -> None:
        """The training code has reported these metrics; the dictionary is not changed later."""
        row = Row(step, time.time(), metrics)
        self._recent.append(row)
        if self._sends:
            self._unsent.append(row)

    def recent(self, last_step: int) -> tuple[Row, ...]:
        """The newest rows of this rank, up to a step."""
        return tuple(row for row in self._recent.copy() if row.step <= last_step)

    def send(self) -> None:
        """Send what is not sent yet; returns without an answer."""
        with self._sending:  # so that `flush` knows every call that was begun
            rows = []
            while self._unsent:
                rows.append(self._unsent.popleft())
            if rows:
                self._pending.append(self._coordinator.add_rows.remote(self._group, rows))

    def flush(self) -> None:
        """Return once everything recorded until now has arrived, or after 10 s; never raises."""
        try:
            self.send()
            with self._sending:
                pending = list(self._pending)
            ray.get(pending, timeout=_FLUSH_S)
        except Exception as error:  # training does not depend on the table
            log.warning("reported metrics did not reach the coordinator: %s", error)
