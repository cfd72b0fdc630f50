"""The curves of a page, from the table of metrics, in an amount of memory that has a bound.

A few MB of Parquet can stand for billions of values. So the table is decoded by some columns at a
time, and of a long curve a few thousand points are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..store import metrics_table
from ..store.metrics_table import Stored

_NO_CURVES = {"epoch", *metrics_table.OWN_COLUMNS}
"""Columns that say where a value was taken."""
VALUES_AT_ONCE = 4_000_000
"""Values that are decoded at once, about; merging takes some hundred bytes for each."""
PIECES = 3000
"""Pieces of a long curve; of each its least and its largest value are kept, and its ends."""


@dataclass(frozen=True)
class Series:
    """A metric over the steps that count."""

    name: str
    """Of the metric."""
    points: list[tuple[int, float, int]]
    """Step, value and attempt, by step; finite values alone, of many some thousand."""
    left_out: int
    """Values that are NaN or infinite."""


@dataclass(frozen=True)
class Curves:
    """The metrics of a table that are numbers; those with a single finite value are left out."""

    drawn: list[Series] = field(default_factory=list)
    """Those with `loss` in their name first, then in their order."""
    left_out: int = 0
    """Further ones."""
    without: list[str] = field(default_factory=list)
    """Names of those that have no curve since their values are NaN or infinite."""
    too_large: str = ""
    """How large the table is, if it was not decoded for that."""


def read(found: Sequence[Stored], most: int, most_rows: float) -> Curves:
    """The curves of a table.

    Args:
        found: The parts of the table.
        most: Curves that are drawn.
        most_rows: Rows of a table that is decoded at most.
    """
    import pyarrow as pa

    schema, rows = metrics_table.outline(found)
    if rows > most_rows:
        return Curves(too_large=f" with {rows:,} rows")
    names = [
        each.name
        for each in schema
        if each.name not in _NO_CURVES
        and (pa.types.is_integer(each.type) or pa.types.is_floating(each.type))
    ]
    names.sort(key=lambda name: "loss" not in name.lower())
    at_once = max(VALUES_AT_ONCE // max(rows, 1) - len(metrics_table.OWN_COLUMNS), 1)
    drawn: list[Series] = []
    without: list[str] = []
    left_out = 0
    for begin in range(0, len(names), at_once):
        some = names[begin : begin + at_once]
        table = metrics_table.merged(metrics_table.opened(found, some))
        for name in some:
            points = _finite(table, name)
            not_finite = len(table) - table[name].null_count - len(points)
            if len(points) < 2:
                without += [name] if not_finite and len(without) < most else []
                continue
            if len(drawn) == most:
                left_out += 1
                continue
            drawn.append(Series(name, _points(points), not_finite))
    return Curves(drawn, left_out, without)


def _finite(table: Any, name: str) -> Any:
    """Step, value and attempt where the value is a finite number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = table[name].cast(pa.float64(), safe=False)
    columns = {"step": table["step"], "value": values, "attempt": table["attempt"]}
    return pa.table(columns).filter(pc.fill_null(pc.is_finite(values), False))


def _points(points: Any) -> list[tuple[int, float, int]]:
    """All of them, or of many the least and the largest of each piece, which has one attempt."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(points) > 4 * PIECES:
        values, attempts = points["value"].combine_chunks(), points["attempt"].combine_chunks()
        size, kept, begin = -(-len(points) // PIECES), set[int](), 0
        ends = pc.run_end_encode(attempts).run_ends.to_pylist()
        while begin < len(points):
            end = min(begin + size, next(each for each in ends if each > begin))
            piece = values.slice(begin, end - begin)
            for value in pc.min_max(piece).values():
                kept.add(begin + pc.index(piece, value).as_py())
            kept |= {begin, end - 1}
            begin = end
        points = points.take(pa.array(sorted(kept)))
    columns = (points[name].to_pylist() for name in ("step", "value", "attempt"))
    return list(zip(*columns, strict=True))
