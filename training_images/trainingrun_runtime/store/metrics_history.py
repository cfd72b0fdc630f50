"""The table of a run, from its parts: what the training that counts has reported, each step once.

A worker group that begins from a checkpoint does the steps after it again, so what was reported of
them before does not count. Each part says which checkpoint its group began from, and which group
made that one; from the newest group this leads back to the first one. Groups beside that line, such
as those of a superseded driver, are left out.
"""

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute

from . import metrics_parts as parts
from .bucket import Bucket, Entry
from .metrics_parts import FOLDER, LARGEST, OWN_COLUMNS, Part, UnreadablePart, common_type
from .metrics_rows import Origin

log = logging.getLogger(__name__)

_AT_ONCE = 16
"""Parts read at once."""


def read(bucket: Bucket) -> Any:
    """The table of a run: a pyarrow Table, by step. Parts that cannot be read are left out.

    Raises:
        StorageError: The store did not answer.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(lambda entry: _read(bucket, entry), bucket.list(FOLDER))
        return merged([part for part in found if part is not None])


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


def _read(bucket: Bucket, entry: Entry) -> Part | None:
    if entry.size > LARGEST:
        log.warning("%s has %d bytes; it is not read", bucket.uri(entry.key), entry.size)
        return None
    content = bucket.get(entry.key)
    try:
        return parts.decoded(entry.key, content) if content is not None else None
    except UnreadablePart as error:
        log.warning("%s cannot be read: %s", bucket.uri(entry.key), error)
        return None


def _up_to(table: Any, last_step: int) -> Any:
    return table.filter(pyarrow.compute.less_equal(table["step"], last_step))


def _concatenated(tables: list[Any]) -> Any:
    if not tables:
        return parts.table_of([], attempt=0)
    # As `OWN_COLUMNS` are, the columns are in the order in which they were first reported.
    names = list(dict.fromkeys(name for table in tables for name in table.column_names))
    schema = pa.schema(
        (name, common_type(t.schema.field(name).type for t in tables if name in t.column_names))
        for name in names
    )
    return pa.concat_tables(
        pa.table(
            [
                table[field.name].cast(field.type)
                if field.name in table.column_names
                else pa.nulls(len(table), field.type)
                for field in schema
            ],
            schema=schema,
        )
        for table in tables
    )


def _one_row_per_step(table: Any) -> Any:
    if pyarrow.compute.count_distinct(table["step"]).as_py() < len(table):
        others = [name for name in table.column_names if name != "step"]
        # `last` leaves out missing values, so a later report keeps what it does not name.
        last = table.group_by("step", use_threads=False).aggregate([(n, "last") for n in others])
        table = pa.table([last["step"], *(last[f"{name}_last"] for name in others)], table.schema)
    return table.sort_by("step").select([*OWN_COLUMNS, *_metrics(table)])


def _metrics(table: Any) -> list[str]:
    return [name for name in table.column_names if name not in OWN_COLUMNS]
