"""What the page says of a run, from its folder and, where there is one, its status. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import ValidationError

from trainingrun_protocol.progress import (
    MOST_RANKS,
    Hang,
    Progress,
    RankRow,
    RunState,
    SlowestRank,
    SweepTable,
)

from ..store.last_progress import Driver
from ..store.run_settings import RunSettings
from . import charts, traces
from .charts import Label, Mark, Span
from .folder import LastLines, RunFolder
from .history import Event, attempts_of, events_of, losses_of
from .spending import Cause, causes_of, cost_of
from .timeline import AttemptRow, Loss, clock, duration, timeline_of, unix_time

MOST_ROWS = 100
"""Rows of a table: of more, the newest are shown."""
_METRICS = 6
"""Metrics of a checkpoint."""
_SLOW = 1.2
"""A rank whose own time is so many times the others' is marked."""

_CONDITIONS = ("Failed", "Succeeded", "Stalled", "Waiting", "Suspended", "Ready")
"""Of those that are true the first one says where a run stands."""


class Figure(NamedTuple):
    """A number at the head of the page."""

    label: str
    value: str
    note: str = ""


class CheckpointRow(NamedTuple):
    """A committed checkpoint."""

    step: int
    time: float
    size: int
    workers: int
    attempt: int
    note: str
    metrics: str


class TraceTable(NamedTuple):
    """Where the time of one start went."""

    title: str
    longest: str
    rows: list[traces.Row]
    seconds: float
    """From its begin to the end of the last phase; more than 0."""


@dataclass(frozen=True)
class Contents:
    """All that is on the page. What is empty is left out."""

    name: str
    folder: str
    state: str
    """One word."""
    tone: str
    """`good`, `bad` or `busy`: the color of the state."""
    message: str
    """Why it is so and, where something is wrong, what to do."""
    written: float
    """Unix time at which this was put together, in seconds."""
    source: str
    """Where this is from, in a sentence."""
    figures: list[Figure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    curves: list[charts.Curve] = field(default_factory=list)
    curves_left_out: int = 0
    curves_without: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    times: list[Label] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    held: list[Cause] = field(default_factory=list)
    """Accelerator seconds, or those of workers."""
    held_unit: str = ""
    money: list[tuple[str, str]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    losses_left_out: int = 0
    hang: Hang | None = None
    stacks: list[tuple[int, str]] = field(default_factory=list)
    stacks_time: str = ""
    stacks_left_out: int = 0
    attempts: list[AttemptRow] = field(default_factory=list)
    attempts_left_out: int = 0
    events: list[Event] = field(default_factory=list)
    events_left_out: int = 0
    traces: list[TraceTable] = field(default_factory=list)
    ranks: list[RankRow] = field(default_factory=list)
    ranks_time: float | None = None
    ranks_left_out: int = 0
    most_ranks: int = MOST_RANKS
    slow_rank: int | None = None
    slow_own: float | None = None
    """Seconds that it takes for a step, without those that it waits for other ranks."""
    slow_sentence: str = ""
    checkpoints: list[CheckpointRow] = field(default_factory=list)
    checkpoints_left_out: int = 0
    sweep: SweepTable | None = None
    settings: list[tuple[str, str]] = field(default_factory=list)
    config: dict[str, str] = field(default_factory=dict)
    config_left_out: int = 0
    result: list[tuple[str, str]] = field(default_factory=list)
    traceback: str = ""
    output: list[LastLines] = field(default_factory=list)


def of(
    name: str,
    folder: RunFolder,
    run: Mapping[str, Any] | None,
    now: float,
    source: str,
) -> Contents:
    """Put together what the page says.

    Args:
        name: Of the run.
        folder: What the run has left; empty where it was not read.
        run: The TrainingRun as the API server gives it; none: it is not there, or was not asked.
        now: Unix time in seconds.
        source: Where this is from, in a sentence.
    """
    status: Mapping[str, Any] = (run or {}).get("status") or {}
    drivers = folder.drivers
    newest = drivers[-1].progress if drivers else None
    state, tone, message = _standing(run, drivers, folder)
    attempts = attempts_of(status, drivers)
    events = events_of(drivers)
    full = folder.settings.workers if folder.settings is not None else None
    goodput, causes = causes_of(status, drivers, full)
    ranks, slowest, ranks_time = _ranks(status, newest)
    step, total = _steps(status, newest)
    losses = losses_of(status, folder)
    if not losses:  # the drivers' records are all that is known
        losses = [
            Loss(e.time, e.attempt, e.kind, e.step, None, None, e.place, e.message, "")
            for e in events
            if e.lost
        ]
    events = [event for event in events if not event.lost]
    lost_at = [loss.step for loss in losses if loss.step is not None]
    spans, marks, times = timeline_of(attempts, drivers, folder.checkpoints, losses, now)
    held, unit, money = cost_of(status)
    progress = status.get("progress") or {}
    warnings = progress.get("warnings") or (newest.warnings if newest else [])
    if status.get("phase") not in (None, "Running", "Succeeded", "Failed"):
        warnings = []  # no rank trains now; those of an ended run are the last that it said
    warnings = [*_refused(status), *warnings]
    # The status keeps the newest ones alone, and counts all.
    count = max(status.get("attempt") or 0, len(attempts))
    counts = [n for n in (status.get("disruptions") or {}).values() if isinstance(n, int)]
    world = progress.get("worldSize") or (newest.world_size if newest is not None else 0)
    return Contents(
        name=name,
        folder=folder.root,
        state=state,
        tone=tone,
        message=message,
        written=now,
        source=source,
        figures=[
            *_figures(step, total, goodput, attempts, now),
            *_counts(count, max(sum(counts), len(losses)), losses, money, folder),
        ],
        warnings=warnings,
        notes=folder.notes,
        curves=[charts.curve(each, lost_at) for each in folder.curves],
        curves_left_out=folder.curves_left_out,
        curves_without=folder.curves_without,
        spans=spans,
        marks=marks,
        times=times,
        causes=causes,
        held=held,
        held_unit=unit,
        money=money,
        losses=losses[-MOST_ROWS:],
        losses_left_out=max(sum(counts), len(losses)) - len(losses[-MOST_ROWS:]),
        hang=_hang(status, newest),
        stacks=list(folder.stacks.texts.items()) if folder.stacks else [],
        stacks_time=folder.stacks.kept.time if folder.stacks else "",
        stacks_left_out=len(folder.stacks.kept.ranks) - len(folder.stacks.texts)
        if folder.stacks
        else 0,
        attempts=attempts[-MOST_ROWS:],
        attempts_left_out=count - len(attempts[-MOST_ROWS:]),
        events=events[-MOST_ROWS:],
        events_left_out=len(events[:-MOST_ROWS]),
        traces=_traces(folder, run),
        ranks=ranks,
        ranks_time=ranks_time,
        ranks_left_out=max(world - len(ranks), 0) if len(ranks) >= MOST_RANKS else 0,
        slow_rank=slowest.rank if slowest is not None and _is_slow(slowest) else None,
        slow_own=slowest.own_seconds if slowest is not None else None,
        slow_sentence=_slow_sentence(slowest),
        checkpoints=_checkpoints(folder),
        checkpoints_left_out=len(folder.checkpoints[:-MOST_ROWS]),
        sweep=folder.sweep or _sweep(run),
        settings=_settings(folder.settings) if folder.settings else [],
        config=folder.settings.config if folder.settings else {},
        config_left_out=folder.settings.config_left_out if folder.settings else 0,
        result=_result(status, folder),
        traceback=newest.failure.traceback if newest and newest.failure else "",
        output=folder.output or _last_lines(status),
    )


def _refused(status: Mapping[str, Any]) -> list[str]:
    """What an edited spec is refused for, while an attempt goes on with the former one."""
    return [
        one["message"]
        for one in status.get("conditions") or []
        if one.get("type") == "Accepted" and one.get("status") == "False" and one.get("message")
    ]


def _standing(
    run: Mapping[str, Any] | None, drivers: Sequence[Driver], folder: RunFolder
) -> tuple[str, str, str]:
    """One word, its color, and a sentence."""
    status = (run or {}).get("status") or {}
    if phase := status.get("phase"):
        true = {
            one.get("type"): one
            for one in status.get("conditions") or []
            if one.get("status") == "True"
        }
        condition: Mapping[str, Any] = next(
            (true[each] for each in _CONDITIONS if each in true), {}
        )
        tone = {"Succeeded": "good", "Failed": "bad"}.get(phase, "busy")
        if phase not in ("Succeeded", "Failed"):
            tone = "bad" if "Stalled" in true else tone
            deleted = ((run or {}).get("metadata") or {}).get("deletionTimestamp")
            phase = "Deleting" if deleted else phase
        return phase, tone, condition.get("message", "")
    if folder.result is not None:
        return "Succeeded", "good", ""
    if not drivers and run is not None:
        return "Pending", "busy", "No operator has seen the run yet."
    if not drivers:
        return "Unknown", "busy", "No driver of this run has begun to train."
    last = drivers[-1]
    if last.progress is None:
        return (
            "Unknown",
            "busy",
            f"Attempt {last.attempt} has left no record of what it did; it was last heard of at "
            f"{clock(last.seen)}.",
        )
    found = last.progress
    if found.failure is not None:
        return "Failed", "bad", _sentence(found.failure.message)
    if found.state.final:
        return found.state.phase, "good" if found.state is RunState.SUCCEEDED else "busy", ""
    return (
        found.state.phase,
        "busy",
        f"Attempt {found.attempt} was last heard of at {clock(last.seen)}, at step {found.step:,}.",
    )


def _last_lines(status: Mapping[str, Any]) -> list[LastLines]:
    """A few lines of the rank that ended the newest attempt, where the bucket was not read."""
    newest = (status.get("attempts") or [{}])[-1]
    lines, rank = newest.get("lastLines"), newest.get("failedRank")
    if not lines or rank is None:
        return []
    return [LastLines(newest.get("number", 0), rank, lines, failed_first=True)]


def _sweep(run: Mapping[str, Any] | None) -> SweepTable | None:
    """The trials of a sweep as its status has them, where the bucket was not read."""
    spec, status = ((run or {}).get(part) or {} for part in ("spec", "status"))
    metric = (spec.get("sweep") or {}).get("metric")
    try:
        return SweepTable.model_validate({"metric": metric, **(status.get("sweep") or {})})
    except ValidationError:
        return None


def _hang(status: Mapping[str, Any], newest: Progress | None) -> Hang | None:
    """The latest one."""
    if found := status.get("hang"):
        try:
            return Hang.model_validate({**found, "time": unix_time(found.get("time")) or 0})
        except ValidationError:
            return None
    return newest.hang if newest is not None else None


def _ranks(
    status: Mapping[str, Any], newest: Progress | None
) -> tuple[list[RankRow], SlowestRank | None, float | None]:
    """As they last reported; the status has them only while they train."""
    progress = status.get("progress") or {}
    if progress.get("ranks"):
        try:
            slowest = progress.get("slowestRank")
            return (
                [RankRow.model_validate(each) for each in progress["ranks"]],
                SlowestRank.model_validate(slowest) if slowest else None,
                unix_time(progress.get("updateTime")),
            )
        except ValidationError:
            pass  # of an older operator; the driver's own document has them
    if newest is None:
        return [], None, None
    return newest.ranks, newest.slowest_rank, newest.time or None


def _is_slow(found: SlowestRank) -> bool:
    return found.own_seconds > found.median_seconds * _SLOW


def _slow_sentence(found: SlowestRank | None) -> str:
    if found is None or not _is_slow(found):
        return ""
    on = f" on {found.node}" if found.node else ""
    return (
        f"Rank {found.rank}{on} takes {found.own_seconds:.3g} s of its own for a step; the median "
        f"of the others is {found.median_seconds:.3g} s."
    )


def _steps(status: Mapping[str, Any], newest: Progress | None) -> tuple[int | None, int | None]:
    progress = status.get("progress") or {}
    if "step" in progress:
        return progress["step"], progress.get("totalSteps")
    return (newest.step, newest.total_steps) if newest is not None else (None, None)


def _traces(folder: RunFolder, run: Mapping[str, Any] | None) -> list[TraceTable]:
    """The latest start and the latest recovery."""
    shown = []
    for found in traces.latest(traces.of(folder.starts, traces.began_of(run))):
        rows = traces.rows(found)
        ends = [(row.begin or 0.0) + (row.seconds or 0.0) for row in rows]
        whole = max([*ends, 0.001])  # there may be no row
        shown.append(TraceTable(found.title, traces.longest(found), rows, whole))
    return shown


def _figures(
    step: int | None,
    total: int | None,
    goodput: int | None,
    attempts: Sequence[AttemptRow],
    now: float,
) -> list[Figure]:
    """How far the run is."""
    figures = []
    if step is not None:
        of_all = f"of {total:,}" if total else ""
        figures.append(Figure("Steps", f"{step:,}", of_all))
    if goodput is not None:
        figures.append(Figure("Goodput", f"{goodput} %", "of the time in steps that counted"))
    begun = [one.start for one in attempts if one.start]
    if begun:
        running = attempts[-1].end is None
        end = now if running else max(one.end or 0.0 for one in attempts)
        figures.append(Figure("Time", duration(end - min(begun)), f"since {clock(min(begun))}"))
    return figures


def _counts(
    attempts: int,
    disruptions: int,
    losses: Sequence[Loss],
    money: Sequence[tuple[str, str]],
    folder: RunFolder,
) -> list[Figure]:
    """How often, and what it took; of the disruptions `losses` are known in detail."""
    figures = []
    if attempts:
        figures.append(Figure("Attempts", f"{attempts:,}"))
    if disruptions:
        again = [loss.lost_steps for loss in losses if loss.lost_steps is not None]
        at_least = "" if len(again) == disruptions else "at least "
        note = f"{at_least}{sum(again):,} steps lost" if again else ""
        figures.append(Figure("Disruptions", f"{disruptions:,}", note))
    if money:
        figures.append(Figure("Cost", money[0][1], money[0][0].lower()))
    if folder.checkpoints:
        newest = folder.checkpoints[-1]
        figures.append(
            Figure("Checkpoints", f"{len(folder.checkpoints)}", f"newest of step {newest.step:,}")
        )
    return figures


def _checkpoints(folder: RunFolder) -> list[CheckpointRow]:
    rows = []
    for one in folder.checkpoints[-MOST_ROWS:]:
        notes = ["newest"] if one is folder.checkpoints[-1] else []
        notes += ["best"] if folder.best is not None and one.key == folder.best.key else []
        metrics = list(one.metrics.items())[:_METRICS]
        rows.append(
            CheckpointRow(
                one.step,
                one.time,
                sum(file.size for file in one.files.values()),
                one.world_size,
                one.attempt,
                ", ".join(notes),
                ", ".join(f"{key} {value_text(value)}" for key, value in metrics),
            )
        )
    return rows


def _settings(found: RunSettings) -> list[tuple[str, str]]:
    """What tells this run from another one, but for its config."""
    at_least = f", at least {found.minimum_workers:,}" if found.minimum_workers else ""
    resources = found.resources_per_worker.items()
    rows = [
        ("Function", found.function),
        ("Script", found.script),
        ("Arguments", " ".join(found.script_args)),
        ("Workers", f"{found.workers:,}{at_least}"),
        ("Each worker", ", ".join(f"{number:g} {name}" for name, number in resources)),
        ("Image", found.image),
        ("Versions", ", ".join(f"{name} {number}" for name, number in found.versions.items())),
    ]
    return [(name, text) for name, text in rows if text]


def _result(status: Mapping[str, Any], folder: RunFolder) -> list[tuple[str, str]]:
    metrics = (status.get("result") or {}).get("metrics")
    if not metrics and folder.result is not None:
        metrics = folder.result.metrics
    return [(str(name), value_text(value)) for name, value in (metrics or {}).items()]


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?" else f"{text}."


def value_text(value: Any) -> str:
    """A metric."""
    if isinstance(value, float) and math.isfinite(value):
        return charts.number(value)
    return str(value)
