"""Writes the parts of the table, in a thread of the driver.

A part is written again while it grows, since the store has no append; after `VALUES` or `CELLS` it
is full and the next one begins. A checkpoint is committed after the parts with the reports up to
its step: so what a later worker group continues is in the bucket.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from .bucket import Bucket
from .reported_metrics import MOST, Batch, Origin, Row

log = logging.getLogger(__name__)

VALUES = 100_000
"""Values in a part, about; a part of them has some hundred kB."""
CELLS = 2_000_000
"""Rows times columns of a part, about: of names that differ from step to step, most are empty."""
COLUMNS = 2 * MOST
"""Names of metrics of a worker group; further ones are left out of the table."""


@dataclass
class _Open:
    """The newest part of a worker group."""

    origin: Origin | None
    number: int = 1
    rows: list[Row] = field(default_factory=list)
    values: int = 0
    names: set[str] = field(default_factory=set)
    changed: bool = True

    @property
    def is_full(self) -> bool:
        return self.values >= VALUES or len(self.rows) * len(self.names) >= CELLS

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.values += 1 + len(row.metrics)
        self.names.update(row.metrics)
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
        # Rows of the batch with this number that were added when the store did not answer.
        self._begun = (0, 0)
        self._open: dict[int, _Open] = {}
        self._names: dict[int, set[str]] = {}
        self._lock = threading.Lock()

    def write(self) -> None:
        """Write all rows that there are; what fails is written by the next call.

        Raises:
            StorageError: The store did not answer.
        """
        with self._lock:
            for batch in self._take(self._seen):
                number, added = self._begun
                added = added if number == batch.number else 0
                # Without a row too: later groups lead back through this one.
                part = self._open.setdefault(batch.group, _Open(batch.origin))
                for row in batch.rows[added:]:
                    if part.is_full:
                        self._write(batch.group, part)
                        part = self._next(batch.group, part)
                    part.add(self._bounded(batch.group, row))
                    added += 1
                    self._begun = (batch.number, added)
                self._seen = batch.number
            for group, part in self._open.items():
                self._write(group, part)
            # Of a group that is over, late rows alone could come: a part of their own.
            for group in sorted(self._open)[:-1]:
                if self._open[group].rows:
                    self._next(group, self._open[group]).changed = False

    def _bounded(self, group: int, row: Row) -> Row:
        """The row without what would be one column too many."""
        names = self._names.setdefault(group, set())
        new = row.metrics.keys() - names
        if len(names) + len(new) <= COLUMNS:
            names |= new
            return row
        if len(names) < COLUMNS:
            names.update(sorted(new)[: COLUMNS - len(names)])
            log.warning(
                "more than %d names of metrics are reported; the others are not in the run's table",
                COLUMNS,
            )
        return row._replace(metrics={k: v for k, v in row.metrics.items() if k in names})

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
