"""What the page needs of a run's folder, read from the bucket."""

import math
from dataclasses import dataclass, field
from typing import Any

from trainingrun_protocol.progress import ProgressResult, SweepTable

from ..store import last_progress, manifest, metrics_table, retention, run_result
from ..store.bucket import Bucket
from ..store.last_progress import Driver
from ..store.manifest import Manifest
from ..store.storage_errors import UnusableError

MOST_CURVES = 12
"""Metrics that are drawn: of more, those with `loss` in their name first, then in their order."""


@dataclass(frozen=True)
class Series:
    """A metric over the steps that count."""

    name: str
    """Of the metric."""
    points: list[tuple[int, float, int]]
    """Step, value and attempt, by step; finite values alone."""
    left_out: int
    """Values that are NaN or infinite."""


@dataclass(frozen=True)
class RunFolder:
    """What a run has left."""

    root: str
    """URI of the folder."""
    drivers: list[Driver] = field(default_factory=list)
    """The first one first."""
    curves: list[Series] = field(default_factory=list)
    """Metrics that are numbers."""
    curves_left_out: int = 0
    """Further metrics that are numbers."""
    checkpoints: list[Manifest] = field(default_factory=list)
    """Oldest first."""
    best: Manifest | None = None
    """The best checkpoint, where `checkpoints.best` is set."""
    result: ProgressResult | None = None
    """Of a run that has succeeded."""
    sweep: SweepTable | None = None
    """All trials of a sweep; the rest is that of one of them."""
    notes: list[str] = field(default_factory=list)
    """What could not be read, a sentence for each."""


def read(bucket: Bucket, largest_table: float = math.inf) -> RunFolder:
    """Read the folder of a run, or of a trial.

    Args:
        bucket: The folder.
        largest_table: Bytes of the table of metrics, as it is stored: one with more is not read.

    Raises:
        StorageError: The store did not answer.
    """
    notes = []
    committed = []
    for key, found in manifest.read_all(bucket):
        if isinstance(found, Manifest):
            committed.append(found)
        else:
            notes.append(f"{key} cannot be read: {found}.")
    try:
        result = run_result.read(bucket)
    except UnusableError as error:
        result = None
        notes.append(f"{error}.")
    curves: list[Series] = []
    stored = sum(entry.size for entry in bucket.list(metrics_table.FOLDER))
    if stored <= largest_table:
        curves = _curves(metrics_table.read(bucket))
    else:
        notes.append(
            f"The table of metrics has {stored / 1e6:.0f} MB, too much for the head to draw; "
            "`trainingrun report --html` draws it."
        )
    return RunFolder(
        bucket.root,
        last_progress.drivers(bucket),
        curves[:MOST_CURVES],
        len(curves[MOST_CURVES:]),
        committed,
        retention.best_known(committed),
        result,
        result.sweep if result is not None else None,
        notes,
    )


def _curves(table: Any) -> list[Series]:
    """The columns of numbers, losses first; those with a single finite value are left out."""
    import pyarrow as pa

    steps, attempts = table["step"].to_pylist(), table["attempt"].to_pylist()
    found = []
    for name in table.column_names:
        kind = table.schema.field(name).type
        if name in metrics_table.OWN_COLUMNS or not (
            pa.types.is_integer(kind) or pa.types.is_floating(kind)
        ):
            continue
        given = [
            (step, float(value), attempt)
            for step, value, attempt in zip(steps, table[name].to_pylist(), attempts, strict=True)
            if value is not None
        ]
        finite = [point for point in given if math.isfinite(point[1])]
        if len(finite) > 1:
            found.append(Series(name, finite, len(given) - len(finite)))
    return sorted(found, key=lambda one: "loss" not in one.name.lower())
