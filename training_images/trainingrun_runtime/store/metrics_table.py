"""The table of what a run has reported: a row for each step that counts, in parts in the bucket.

A part, `reports/<fencing token>-<worker group>-<number>.parquet`, has rows of one worker group, and
in its metadata the checkpoint from which that group began, and which group made that one. A group
does the steps after its checkpoint again, so what was reported of them before does not count: the
newest group leads back to the first one. Groups beside that line, such as those of a superseded
driver, are left out.
"""

import json
import logging
import re
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from .bucket import Bucket
from .reported_metrics import SPELLED, Origin, Row

log = logging.getLogger(__name__)

FOLDER = "reports"
"""Where parts are, below the run's folder."""
LARGEST = 2**26
"""Bytes of a part; a larger object is not read."""
MOST_VALUES = 20_000_000
"""Values of a part; one with more is not read: few bytes of Parquet can stand for very many."""
OWN_COLUMNS = ("step", "time", "attempt")
"""Columns that every part has, before those of the metrics."""

_AT_ONCE = 16
"""Parts read at once."""
_VERSION = 1
_METADATA = b"trainingrun"
_TIME = pa.timestamp("us", "UTC")
_TYPES = frozenset(map(str, (pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.string(), _TIME)))
"""Types of the columns of a part: each can be cast to the type that two parts have in common."""
_MOVED = re.compile(rf"(?:reported_)*(?:{'|'.join(OWN_COLUMNS)})")
"""Metrics that are in a column of another name; by a rule, as each part is made for itself."""
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
        return f"{FOLDER}/{self.fencing_token:06d}-{self.group:04d}-{self.number:04d}.parquet"


class Stored(NamedTuple):
    """An object that may be a part."""

    key: str
    """Its place in the bucket."""
    content: bytes
    """As it is stored: compressed."""


def read(bucket: Bucket) -> Any:
    """The table of a run: a pyarrow Table, by step. Parts that cannot be read are left out.

    Raises:
        StorageError: The store did not answer.
    """
    return merged(opened(stored(bucket)))


def stored(bucket: Bucket) -> list[Stored]:
    """All parts of a run as they are stored, for `opened`.

    Raises:
        StorageError: The store did not answer.
    """
    entries = []
    for entry in bucket.list(FOLDER):
        if entry.size > LARGEST:
            log.warning("%s has %d bytes; it is not read", bucket.uri(entry.key), entry.size)
        else:
            entries.append(entry)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        contents = pool.map(lambda entry: bucket.get(entry.key), entries)
        pairs = zip(entries, contents, strict=True)
        return [Stored(entry.key, content) for entry, content in pairs if content is not None]


def opened(found: Iterable[Stored], columns: Collection[str] | None = None) -> list[Part]:
    """The parts among these objects; what cannot be read is left out.

    Args:
        found: From `stored`.
        columns: Metrics whose values are decoded; None: all of them.
    """
    parts = []
    for each in found:
        try:
            parts.append(decoded(*each, columns))
        except UnreadablePart as error:
            log.warning("%s cannot be read: %s", each.key, error)
    return parts


def outline(found: Iterable[Stored]) -> tuple[Any, int]:
    """What the table of these parts has, without its values.

    Returns:
        The pyarrow Schema of the table, and the number of rows of all parts together.
    """
    parts, rows = [], 0
    for each in found:
        try:
            file, part = _file(*each)
        except UnreadablePart:
            continue  # `opened` says so
        parts.append(part)
        rows += file.metadata.num_rows
    return merged(parts).schema, rows


def merged(found: Iterable[Part]) -> Any:
    """The table from all parts, in any order. Of several reports of a step the last value counts.

    Returns:
        A pyarrow Table with `OWN_COLUMNS` and a column for each metric; without a part, no row.
    """
    groups: dict[tuple[int, int], list[Part]] = {}
    for part in sorted(found, key=lambda part: part.number):
        groups.setdefault((part.fencing_token, part.group), []).append(part)
    tables: list[Any] = []
    place, last_step = max(groups, default=None), None
    while place in groups:
        members = groups.pop(place)  # popped, so that no damaged origin leads in a circle
        for part in reversed(members):
            tables.append(part.table if last_step is None else _up_to(part.table, last_step))
        origin: Origin | None = members[0].origin
        if origin is None:
            break
        place = (origin.fencing_token, origin.group)
        last_step = origin.step
    return _one_row_per_step(_concatenated(tables[::-1]))


def table_of(rows: Sequence[Row], attempt: int) -> Any:
    """Rows as a pyarrow Table.

    A metric whose values are numbers is a column of integers or floats, with NaN and infinity as
    such; of mixed values a column of text is made. A metric named as one of `OWN_COLUMNS` is in
    `reported_<name>`, unless it is the step itself, and one that is named so in
    `reported_reported_<name>`.
    """
    columns: dict[str, list[Any]] = {}
    for index, row in enumerate(rows):
        for name, value in row.metrics.items():
            if name == "step" and value == row.step:
                continue
            name = f"reported_{name}" if _MOVED.fullmatch(name) else name
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


def decoded(name: str, content: bytes, columns: Collection[str] | None = None) -> Part:
    """The part in an object of the bucket.

    Args:
        name: Of the object, below the run's folder.
        content: The object.
        columns: Metrics whose values are decoded; None: all of them.

    Raises:
        UnreadablePart: It is none, or one of a newer version.
    """
    file, part = _file(name, content)
    names = part.table.column_names
    if columns is not None:
        names = [each for each in names if each in OWN_COLUMNS or each in columns]
    try:
        # Selected again: a name with a dot is a path to Parquet.
        table = file.read(columns=names).select(names)
    except (pa.ArrowException, OSError) as error:
        raise UnreadablePart(f"it is not a part of the table ({type(error).__name__})") from None
    return replace(part, table=table.replace_schema_metadata())


def _file(name: str, content: bytes) -> tuple[Any, Part]:
    """The Parquet file in an object, and its part without a row.

    Raises:
        UnreadablePart: See `decoded`.
    """
    place = _KEY.fullmatch(name)
    if place is None:
        raise UnreadablePart("its name is not that of a part")
    try:
        file = pyarrow.parquet.ParquetFile(pa.BufferReader(content))
        if file.metadata.num_rows * file.metadata.num_columns > MOST_VALUES:
            raise UnreadablePart(f"it has {file.metadata.num_rows} rows, too many for a part")
        schema = file.schema_arrow
        metadata = json.loads((schema.metadata or {})[_METADATA])
        version, origin = metadata["version"], metadata["origin"]
        began = (
            Origin(**{field: int(origin[field]) for field in Origin._fields}) if origin else None
        )
        if metadata["part"] != name:
            raise UnreadablePart(f"it says that it is {metadata['part']}")
        own = [schema.field(column).type for column in OWN_COLUMNS]
    except UnreadablePart:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise UnreadablePart(f"it is not a part of the table ({type(error).__name__})") from None
    if version != _VERSION:
        raise UnreadablePart(f"it has version {version}, which only a newer trainingrun reads")
    if own != [pa.int64(), _TIME, pa.int64()]:
        raise UnreadablePart(f"its columns {', '.join(OWN_COLUMNS)} have other types")
    if other := sorted({str(kind) for kind in schema.types} - _TYPES):
        raise UnreadablePart(f"it has a column of type {other[0]}")
    if len(set(schema.names)) < len(schema.names):
        raise UnreadablePart("two of its columns have one name")
    token, group, number = (int(digits) for digits in place.groups())
    without_rows = schema.empty_table().replace_schema_metadata()
    return file, Part(token, group, number, began, without_rows)


def _common_type(types: Iterable[Any]) -> Any:
    """The type of a column that has these types in different parts.

    Of integers and floats it is that of the floats: beyond 2**53 an integer is rounded then.
    """
    known = {kind for kind in types if kind != pa.null()}
    if len(known) <= 1:
        return known.pop() if known else pa.null()
    return pa.float64() if known <= {pa.int64(), pa.float64()} else pa.string()


def _column(values: Sequence[Any]) -> Any:
    present = [value for value in values if value is not None]
    numeric = [v for v in present if not (isinstance(v, str) and v in SPELLED)]
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


def _up_to(table: Any, last_step: int) -> Any:
    return table.filter(pyarrow.compute.less_equal(table["step"], last_step))


def _concatenated(tables: list[Any]) -> Any:
    if not tables:
        return table_of([], attempt=0)
    # As `OWN_COLUMNS` are, the columns are in the order in which they were first reported.
    names = list(dict.fromkeys(name for table in tables for name in table.column_names))
    schema = pa.schema(
        (name, _common_type(t.schema.field(name).type for t in tables if name in t.column_names))
        for name in names
    )
    return pa.concat_tables(
        pa.table(
            [
                _cast(table[field.name], field.type)
                if field.name in table.column_names
                else pa.nulls(len(table), field.type)
                for field in schema
            ],
            schema=schema,
        )
        for table in tables
    )


def _cast(column: Any, kind: Any) -> Any:
    """To a type of `_common_type`. A large integer becomes the next float, as in Python."""
    return column.cast(kind, safe=not (column.type == pa.int64() and kind == pa.float64()))


def _one_row_per_step(table: Any) -> Any:
    if pyarrow.compute.count_distinct(table["step"]).as_py() < len(table):
        # Arrow has no `last` of a column that has no value at all.
        empty = [field.name for field in table.schema if field.type == pa.null()]
        others = [name for name in table.column_names if name != "step" and name not in empty]
        # `last` leaves out missing values, so a later report keeps what it does not name.
        last = table.group_by("step", use_threads=False).aggregate([(n, "last") for n in others])
        columns = {"step": last["step"], **{name: last[f"{name}_last"] for name in others}}
        columns |= {name: pa.nulls(len(last)) for name in empty}
        table = pa.table([columns[name] for name in table.column_names], table.schema)
    return table.sort_by("step").select(list(dict.fromkeys((*OWN_COLUMNS, *table.column_names))))
