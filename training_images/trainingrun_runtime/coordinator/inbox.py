"""Rows that the coordinator has received, until the driver has taken them."""

import logging
import threading
from collections import deque
from collections.abc import Iterable

from ..store.reported_metrics import Batch, Origin, Row

log = logging.getLogger(__name__)

LARGEST = 1_000_000
"""Values that wait at most; while the bucket does not answer for long, the oldest are dropped."""


class Inbox:
    """Batches of rows in the order of their arrival. One lock guards all of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: deque[Batch] = deque()
        self._origins: dict[int, Origin | None] = {}
        self._newest: dict[int, int] = {}  # group -> newest step received
        self._number = self._values = 0

    def begin(self, group: int, origin: Origin | None) -> None:
        """A worker group begins from a checkpoint, or at the first step."""
        with self._lock:
            self._origins[group] = origin
            self._append(group, ())

    def add_rows(self, group: int, rows: Iterable[Row]) -> None:
        """Rows of a worker group, as rank 0 has reported them."""
        with self._lock:
            self._add(group, tuple(rows))

    def complete(self, rows: Iterable[Row], last_step: int) -> None:
        """Add the rows of another rank where those of a lost rank 0 have not arrived."""
        with self._lock:
            group = max(self._origins, default=0)
            newest = self._newest.get(group, 0)
            self._add(group, tuple(row for row in rows if newest < row.step <= last_step))

    def rows(self, seen: int) -> list[Batch]:
        """The driver: the batches after that with number `seen`; those before are dropped."""
        with self._lock:
            while self._batches and self._batches[0].number <= seen:
                self._drop_oldest()
            return list(self._batches)

    def _add(self, group: int, rows: tuple[Row, ...]) -> None:
        if rows and group in self._origins:
            newest = max(row.step for row in rows)
            self._newest[group] = max(self._newest.get(group, 0), newest)
            self._append(group, rows)

    def _append(self, group: int, rows: tuple[Row, ...]) -> None:
        self._number += 1
        batch = Batch(self._number, group, self._origins[group], rows)
        self._batches.append(batch)
        self._values += _values(batch)
        dropped = 0
        while self._values > LARGEST and len(self._batches) > 1:
            dropped += len(self._drop_oldest().rows)
        if dropped:
            log.warning("%d reports are not in the table: the bucket did not take them", dropped)

    def _drop_oldest(self) -> Batch:
        batch = self._batches.popleft()
        self._values -= _values(batch)
        return batch


def _values(batch: Batch) -> int:
    return sum(1 + len(row.metrics) for row in batch.rows)
