"""What `metrics` and `checkpoints` print. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..local import tables
from .durations import short

if TYPE_CHECKING:
    from trainingrun_runtime.checkpoints.manifest import Manifest

_NUMBER = 6
"""Digits of a number in a table."""


def metrics_table(rows: Sequence[dict[str, Any]], columns: Sequence[str], width: int | None) -> str:
    """Rows of the table of reports; `width` is the terminal's, None: no limit."""
    return tables.table(columns, [[_value(row[name]) for name in columns] for row in rows], width)


def checkpoints_table(
    committed: Sequence["Manifest"],
    best: "Manifest | None",
    now: datetime,
    root: str,
    width: int | None,
) -> str:
    """One line per checkpoint, the newest last; `width` is the terminal's, None: no limit."""
    rows = []
    for one in committed:
        notes = ["newest"] if one is committed[-1] else []
        notes += ["best"] if best is not None and one.key == best.key else []
        shown = " ".join(f"{name}={_value(value)}" for name, value in one.metrics.items())
        row = [one.step, _age(one, now), size_of(one), one.world_size, one.attempt]
        rows.append([*row, ", ".join(notes), shown, f"{root}/{one.path}"])
    heads = ("STEP", "AGE", "SIZE", "WORKERS", "ATTEMPT", "NOTE", "METRICS", "URI")
    return tables.table(heads, rows, width)


def name_of(root: str) -> str:
    """The name of a run's folder, with the trial where it is one of a sweep's."""
    rest, _, name = root.rpartition("/")
    run, _, between = rest.rpartition("/")
    return f"{run.rpartition('/')[2]}-trial-{name}" if between == "trials" else name


def size_of(*checkpoints: "Manifest") -> str:
    """The size of checkpoints' files, in a unit that fits."""
    size = float(sum(file.size for one in checkpoints for file in one.files.values()))
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def files_of(one: "Manifest") -> str:
    """How many files a checkpoint has."""
    return "1 file" if len(one.files) == 1 else f"{len(one.files)} files"


def _age(one: "Manifest", now: datetime) -> str:
    return short((now - datetime.fromtimestamp(one.time, UTC)).total_seconds())


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{_NUMBER}g}"
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value)
