"""The timeline of a run: what ran when, and what was lost and saved meanwhile. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from trainingrun_protocol.progress import RecordKind

from ..store.last_progress import Driver
from ..store.manifest import Manifest
from .charts import Label, Mark, Span


class AttemptRow(NamedTuple):
    """One attempt."""

    number: int
    outcome: str
    reason: str
    start: float | None
    end: float | None
    resumed_from: int | None
    last_step: int | None
    capacity: str
    message: str


class Loss(NamedTuple):
    """A loss, and what it cost."""

    time: float
    attempt: int
    reason: str
    step: int | None
    lost_steps: int | None
    lost_seconds: float | None
    place: str
    message: str
    action: str


def timeline_of(
    attempts: Sequence[AttemptRow],
    drivers: Sequence[Driver],
    checkpoints: Sequence[Manifest],
    losses: Sequence[Loss],
    now: float,
) -> tuple[list[Span], list[Mark], list[Label]]:
    """What ran when; the inside of an attempt as its drivers have left it."""
    begun = [one.start for one in attempts if one.start]
    if not begun:
        return [], [], []
    first = min(begun)
    ends = [one.end or now for one in attempts if one.start]
    last = max([*ends, *(driver.seen for driver in drivers), first + 1])

    def at(time: float) -> float:
        return min(max((time - first) / (last - first) * 100, 0.0), 100.0)

    def span(begin: float, end: float, kind: str, what: str) -> Span:
        return Span(at(begin), max(at(end) - at(begin), 0.0), kind, what)

    spans = []
    for one in attempts:
        if one.start:
            known = any(d.attempt == one.number and d.progress is not None for d in drivers)
            kind = "starting" if known else "unknown"
            title = f"Attempt {one.number}: {one.outcome}"
            spans.append(span(one.start, one.end or now, kind, title))
    for driver in drivers:
        for begin, end, kind in _phases(driver):
            what = f"Attempt {driver.attempt}: {kind} for {duration(end - begin)}"
            spans.append(span(begin, end, kind, what))
    marks = [
        Mark(at(found.time), "saved", f"Checkpoint of step {found.step:,}, {clock(found.time)}")
        for found in checkpoints
        if first <= found.time <= last
    ]
    marks += [
        Mark(at(loss.time), "lost", f"{loss.reason}, {clock(loss.time)}: {loss.message}")
        for loss in losses
        if first <= loss.time <= last
    ]
    return spans, marks, _times(first, last)


def _phases(driver: Driver) -> list[tuple[float, float, str]]:
    """When a driver trained, and when it was stopped by losses."""
    if driver.progress is None or not driver.began:
        return []
    found = driver.progress
    if found.resumed_from_step is None:
        return []
    begin = min(driver.began + found.seconds.startup, driver.seen)
    end = min(found.step_time or driver.seen, driver.seen)
    phases, paused = [], None
    for record in found.records:
        if record.kind.is_loss and paused is None and record.time > begin:
            phases.append((begin, record.time, "training"))
            paused = record.time
        elif record.kind is RecordKind.RESTORED and paused is not None:
            phases.append((paused, record.time, "paused"))
            begin, paused = record.time, None
    if paused is not None:
        phases.append((paused, driver.seen, "paused"))
    elif end > begin:
        phases.append((begin, end, "training"))
    return phases


def _times(first: float, last: float) -> list[Label]:
    """Times at the ends and between them, as precise as they have to be."""
    count = 3
    same_day = _date(first) == _date(last)
    form = ("%H:%M:%S" if last - first < 600 else "%H:%M") if same_day else "%d %b %H:%M"
    return [
        Label(
            index / (count - 1) * 100,
            datetime.fromtimestamp(first + (last - first) * index / (count - 1), UTC).strftime(
                form
            ),
        )
        for index in range(count)
    ]


def _date(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}"


def clock(time: float | None) -> str:
    """A time for people, in UTC."""
    try:
        return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC" if time else ""
    except (ValueError, OverflowError, OSError):  # of an object that says the year 30,000
        return ""


def unix_time(text: Any) -> float | None:
    """Of a time of the Kubernetes API; none where it has none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    except ValueError:
        return None


def duration(seconds: float) -> str:
    """A duration in its two largest units."""
    seconds = max(seconds, 0.0)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{whole} s"
