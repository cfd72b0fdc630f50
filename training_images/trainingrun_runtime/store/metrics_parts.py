"""Parts of the table: `reports/<fencing token>-<worker group>-<number>.parquet`.

A part has rows of one worker group, and in the file's metadata where that group began. Its name
has the driver's fencing token, so a superseded driver overwrites only parts of its own, which
`history` leaves out.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from .metric_values import SPELLED
from .metrics_rows import Origin, Row

FOLDER = "reports"
"""Where parts are, below the run's folder."""
LARGEST = 2**26
"""Bytes of a part; a larger object is not read."""
MOST_VALUES = 20_000_000
"""Values of a part; one with more is not read: few bytes of Parquet can stand for very many."""
OWN_COLUMNS = ("step", "time", "attempt")
"""Columns that every part has, before those of the metrics."""

_VERSION = 1
_METADATA = b"trainingrun"
_TIME = pa.timestamp("us", "UTC")
_KEY = re.compile(rf"{FOLDER}/(\d{{6,}})-(\d{{4,}})-(\d{{4,}})\.parquet")


class UnreadablePart(ValueError):
    """An object is not a part of the table. The text says why."""


@dataclass(frozen=True)
class Part:
    """Rows of one worker group."""

    fencing_token: int
    """Of the driver that wrote it."""
    group: int
    """Number of the worker group, within the driver."""
    number: int
    """1, 2, 3 … within the group."""
    origin: Origin | None
    """Where the group began; none: at the first step, or with another run's checkpoint."""
    table: Any
    """A pyarrow Table: `OWN_COLUMNS`, then a column for each metric."""

    @property
    def key(self) -> str:
        """Its place in the bucket."""
        return key(self.fencing_token, self.group, self.number)


def key(fencing_token: int, group: int, number: int) -> str:
    """The place of a part in the bucket."""
    return f"{FOLDER}/{fencing_token:06d}-{group:04d}-{number:04d}.parquet"


def table_of(rows: Sequence[Row], attempt: int) -> Any:
    """Rows as a pyarrow Table.

    A metric whose values are numbers is a column of integers or floats, with NaN and infinity as
    such; of mixed values a column of text is made. A metric named as one of `OWN_COLUMNS` is in
    `reported_<name>`, unless it is the step itself.
    """
    columns: dict[str, list[Any]] = {}
    for index, row in enumerate(rows):
        for name, value in row.metrics.items():
            if name == "step" and value == row.step:
                continue
            name = f"reported_{name}" if name in OWN_COLUMNS else name
            if name not in columns:
                columns[name] = [None] * len(rows)
            columns[name][index] = value
    own = {
        "step": pa.array([row.step for row in rows], pa.int64()),
        "time": pa.array([round(row.time * 1e6) for row in rows], pa.int64()).cast(_TIME),
        "attempt": pa.array([attempt] * len(rows), pa.int64()),
    }
    return pa.table({**own, **{name: _column(values) for name, values in columns.items()}})


def encoded(part: Part) -> bytes:
    """A part as a Parquet file."""
    metadata = {
        "version": _VERSION,
        "part": part.key,
        "origin": part.origin._asdict() if part.origin else None,
    }
    table = part.table.replace_schema_metadata({_METADATA: json.dumps(metadata)})
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def decoded(name: str, content: bytes) -> Part:
    """The part in an object of the bucket.

    Raises:
        UnreadablePart: It is none, or one of a newer version.
    """
    place = _KEY.fullmatch(name)
    if place is None:
        raise UnreadablePart("its name is not that of a part")
    try:
        file = pyarrow.parquet.ParquetFile(pa.BufferReader(content))
        if file.metadata.num_rows * file.metadata.num_columns > MOST_VALUES:
            raise UnreadablePart(f"it has {file.metadata.num_rows} rows, too many for a part")
        table = file.read()
        metadata = json.loads((table.schema.metadata or {})[_METADATA])
        version, origin = metadata["version"], metadata["origin"]
        began = (
            Origin(**{field: int(origin[field]) for field in Origin._fields}) if origin else None
        )
        if metadata["part"] != name:
            raise UnreadablePart(f"it says that it is {metadata['part']}")
        own = [table.schema.field(column).type for column in OWN_COLUMNS]
    except UnreadablePart:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise UnreadablePart(f"it is not a part of the table ({type(error).__name__})") from None
    if version != _VERSION:
        raise UnreadablePart(f"it has version {version}, which only a newer trainingrun reads")
    if own != [pa.int64(), _TIME, pa.int64()]:
        raise UnreadablePart(f"its columns {', '.join(OWN_COLUMNS)} have other types")
    token, group, number = (int(digits) for digits in place.groups())
    return Part(token, group, number, began, table.replace_schema_metadata())


def common_type(types: Iterable[Any]) -> Any:
    """The type of a column that has these types in different parts."""
    known = {kind for kind in types if kind != pa.null()}
    if len(known) <= 1:
        return known.pop() if known else pa.null()
    return pa.float64() if known <= {pa.int64(), pa.float64()} else pa.string()


def _is_spelled(value: Any) -> bool:
    """Whether it is a number that JSON cannot carry."""
    return isinstance(value, str) and value in SPELLED


def _column(values: Sequence[Any]) -> Any:
    present = [value for value in values if value is not None]
    numeric = [value for value in present if not _is_spelled(value)]
    if numeric and all(isinstance(value, bool) for value in present):
        return pa.array(values, pa.bool_())
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in numeric) and present:
        if len(numeric) == len(present) and all(isinstance(value, int) for value in present):
            return pa.array(values, pa.int64())
        floats = [v if v is None else SPELLED.get(v, v) for v in values]
        return pa.array([v if v is None else float(v) for v in floats], pa.float64())
    if not present:
        return pa.nulls(len(values))
    texts = [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
    return pa.array(texts, pa.string())
