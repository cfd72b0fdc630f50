"""Writes the parts of the table, in a thread of the driver.

A part is written again while it grows, since the store has no append; after `VALUES` it is full and
the next one begins. A checkpoint is committed after the parts with the reports up to its step: so
what a later worker group continues is in the bucket.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .bucket import Bucket
from .reported_metrics import Batch, Origin, Row

VALUES = 100_000
"""Values in a part, about; a part of them has some hundred kB."""


@dataclass
class _Open:
    """The newest part of a worker group."""

    origin: Origin | None
    number: int = 1
    rows: list[Row] = field(default_factory=list)
    values: int = 0
    changed: bool = True

    def add(self, rows: Sequence[Row]) -> None:
        self.rows.extend(rows)
        self.values += sum(1 + len(row.metrics) for row in rows)
        self.changed = True


class ReportWriter:
    """Takes the rows from the coordinator and puts them into the run's folder.

    Args:
        bucket: The run's folder.
        fencing_token: Of the driver's lease.
        attempt: Number of the attempt.
        take: Asks for the batches after the one with this number.
    """

    def __init__(
        self,
        bucket: Bucket,
        fencing_token: int,
        attempt: int,
        take: Callable[[int], list[Batch]],
    ) -> None:
        self._bucket, self._fencing_token, self._attempt = bucket, fencing_token, attempt
        self._take, self._seen = take, 0
        self._open: dict[int, _Open] = {}
        self._lock = threading.Lock()

    def write(self) -> None:
        """Write all rows that there are; what fails is written by the next call.

        Raises:
            StorageError: The store did not answer.
        """
        with self._lock:
            for batch in self._take(self._seen):
                part = self._open.setdefault(batch.group, _Open(batch.origin))
                if part.values >= VALUES:
                    self._write(batch.group, part)
                    part = self._next(batch.group, part)
                part.add(batch.rows)
                self._seen = batch.number
            for group, part in self._open.items():
                self._write(group, part)
            # Of a group that is over, late rows alone could come: a part of their own.
            for group in sorted(self._open)[:-1]:
                if self._open[group].rows:
                    self._next(group, self._open[group]).changed = False

    def _next(self, group: int, full: _Open) -> _Open:
        self._open[group] = _Open(full.origin, full.number + 1)
        return self._open[group]

    def _write(self, group: int, part: _Open) -> None:
        if not part.changed:
            return
        from . import metrics_table  # pyarrow, which a start does not wait for

        made = metrics_table.Part(
            self._fencing_token,
            group,
            part.number,
            part.origin,
            metrics_table.table_of(part.rows, self._attempt),
        )
        self._bucket.upload(made.key, metrics_table.encoded(made))
        part.changed = False
