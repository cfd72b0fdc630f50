"""What ranks and driver have printed, in parts below `logs/`: where a part is, and what it says.

A part is text, each line of it `2026-11-26T22:15:00.123Z what was printed`, the time in UTC. A
process that prints writes its part anew every few seconds until it is full, and then the next one.
Once it, or its training function, has ended, there is a part whose name ends in `-end`, and which
is empty. Beside an attempt's parts is how it failed, if a rank did: `Failed`.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from trainingrun_protocol.wire import Wire

if TYPE_CHECKING:  # the uploader loads its client once there is something to upload
    from .bucket import Bucket

FOLDER = "logs"
_FAILED = "failed.json"
_READERS = 8
"""Requests at once."""
_LARGEST = 4 * 1024 * 1024
"""Bytes of a part that are read; a writer makes smaller ones."""
_KEY = re.compile(
    FOLDER + r"/(?P<attempt>\d{1,9})/(?:driver|(?P<group>\d{1,9})/rank-(?P<rank>\d{1,9}))/"
    r"(?P<time>\d{8}T\d{9})Z(?P<end>-end)?\.log"
)
_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})Z (.*)", re.DOTALL)


class Source(NamedTuple):
    """Who has printed something."""

    attempt: int
    """Number of the attempt, from 1."""
    group: int = 0
    """Number of the worker group within its driver, from 1; 0: the driver."""
    rank: int | None = None
    """None: the driver."""

    @property
    def folder(self) -> str:
        """Of its parts, in the run's folder."""
        who = "driver" if self.rank is None else f"{self.group}/rank-{self.rank}"
        return f"{FOLDER}/{self.attempt}/{who}"


class Failed(Wire):
    """How an attempt failed."""

    group: int
    """Number of the worker group."""
    rank: int
    """The rank that failed first."""
    message: str
    """In a sentence."""
    time: float
    """Unix time in seconds."""
    lines: list[str]
    """What that rank has printed last; empty: it is not known."""


class Part(NamedTuple):
    """An object with lines."""

    source: Source
    time: float
    """Unix time of its first line, in seconds."""
    last: bool
    """Whether it is the empty part that says that the process, or its training function, has
    ended."""
    key: str
    """In the run's folder."""
    size: int
    """Bytes."""


class Line(NamedTuple):
    """What was printed up to the end of a line."""

    time: float
    """Unix time at which it was read, in seconds."""
    source: Source
    """Who has printed it."""
    text: str
    """Without the end of the line."""


def key(source: Source, time: float, last: bool = False) -> str:
    """Where the part is that begins at this Unix time."""
    moment = datetime.fromtimestamp(time, UTC)
    stamp = f"{moment:%Y%m%dT%H%M%S}{moment.microsecond // 1000:03d}Z"
    return f"{source.folder}/{stamp}{'-end' if last else ''}.log"


def stamp(time: float) -> str:
    """What stands before a line of this Unix time in a part."""
    moment = datetime.fromtimestamp(time, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z "


def written(time: float, text: str) -> str:
    """A line as it stands in a part."""
    return f"{stamp(time)}{text}\n"


def write_failed(bucket: "Bucket", attempt: int, failed: Failed) -> None:
    """Say how an attempt has failed.

    Raises:
        StorageError: The store did not answer.
    """
    bucket.put(f"{FOLDER}/{attempt}/{_FAILED}", json.dumps(failed.to_dict()).encode())


def failed(bucket: "Bucket", attempt: int) -> Failed | None:
    """How an attempt has failed; None: it has not, or no rank did, or it is not known.

    Raises:
        StorageError: The store did not answer.
    """
    try:
        return Failed.model_validate_json(bucket.get(f"{FOLDER}/{attempt}/{_FAILED}") or b"")
    except ValueError:
        return None


def parts(bucket: "Bucket", attempt: int | None = None) -> list[Part]:
    """All parts by their time, of one attempt or of all.

    Raises:
        StorageError: The store did not answer.
    """
    folder = FOLDER if attempt is None else f"{FOLDER}/{attempt}"
    found = []
    for entry in bucket.list(folder):
        named = _KEY.fullmatch(entry.key)
        if named is None or (began := _unix(f"{named['time']}000", "%Y%m%dT%H%M%S%f")) is None:
            continue
        rank = int(named["rank"]) if named["rank"] else None
        source = Source(int(named["attempt"]), int(named["group"] or 0), rank)
        found.append(Part(source, began, bool(named["end"]), entry.key, entry.size))
    return sorted(found, key=lambda part: part.time)


def prune(bucket: "Bucket", keep: int, before: float = 0) -> None:
    """Delete the oldest parts of a run, until the others have at most `keep` bytes.

    Args:
        bucket: The run's folder.
        keep: Bytes.
        before: Unix time in seconds; parts of which each line is older are deleted in any case.

    Raises:
        StorageError: The store did not answer.
    """
    found = parts(bucket)
    beyond = sum(part.size for part in found) - keep
    expired = []
    following: dict[Source, float] = {}  # when the next part of a source begins
    old = set()
    for part in reversed(found):
        if following.get(part.source, math.inf) <= before:
            old.add(part.key)
        following[part.source] = part.time
    for part in found:
        if beyond > 0 or part.key in old:
            expired.append(part.key)
            beyond -= part.size
    bucket.delete(expired)


def read(
    bucket: "Bucket",
    found: Iterable[Part],
    *,
    since: float = 0,
    tail: int | None = None,
    wanted: Callable[[Line], bool] = lambda line: True,
) -> list[Line]:
    """The lines of parts by their time.

    Args:
        bucket: The run's folder.
        found: Of any sources.
        since: Unix time in seconds; older lines are left out.
        tail: Lines from the end of each rank, and of the driver, of an attempt; None: all.
        wanted: Whether a line counts.

    Raises:
        StorageError: The store did not answer.
    """
    from .storage_errors import AbsentError  # with the client

    ranks: dict[tuple[int, int | None], list[Part]] = {}
    for part in sorted(found, key=lambda part: part.time):
        if part.size:
            ranks.setdefault((part.source.attempt, part.source.rank), []).append(part)

    def of_rank(ordered: list[Part]) -> list[Line]:
        lines: list[Line] = []
        for part in reversed(ordered):
            try:
                content = bucket.read(part.key, 0, min(part.size, _LARGEST))
            except AbsentError:
                break  # it was deleted meanwhile, as the older ones were
            lines = [
                line
                for line in _lines(part, str(content, errors="replace"))
                if line.time >= since and wanted(line)
            ] + lines
            if part.time < since or (tail is not None and len(lines) >= tail):
                break
        return lines if tail is None else lines[-tail:]

    with ThreadPoolExecutor(_READERS) as pool:
        each = list(pool.map(of_rank, ranks.values()))
    return sorted((line for lines in each for line in lines), key=lambda line: line.time)


def _lines(part: Part, content: str) -> list[Line]:
    lines, time = [], part.time
    for text in content.split("\n"):
        if not text:
            continue
        if stamped := _LINE.fullmatch(text):
            time = _unix(stamped[1], "%Y-%m-%dT%H:%M:%S.%f") or time
            text = stamped[2]
        lines.append(Line(time, part.source, text))
    return lines


def _unix(text: str, form: str) -> float | None:
    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
