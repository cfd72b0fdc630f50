"""Where the time of each start went: spans by phase and by process, from a run's documents. Pure.

Names are those of OpenTelemetry's kind: of few values, with dots, and what differs from run to run
is an attribute.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..store.start_traces import MOST_READ, ProcessTimes, StartTrace
from .timeline import unix_time

MOST_OF_A_PHASE = 4
"""Ranks or pods that have a row each: of more, the one that ended last has the only one."""

_DRIVER = (
    ("trainingrun.head.replace", "last_step", "process"),
    ("python.start", "process", "main"),
    ("trainingrun.lease.take", "main", "lease"),
    ("ray.connect", "lease", "connected"),
    ("ray.train.import", "connected", "fit"),
    ("ray.train.controller.start", "fit", "asked"),
)
_GROUP = (
    ("trainingrun.loss.detect", "last_step", "lost"),
    ("trainingrun.last_step.save", "lost", "saved"),
    ("ray.train.worker_group.stop", "saved", "asked"),
    ("ray.train.worker_group.stop", "not_saved", "asked"),
    ("ray.train.worker_group.start", "asked", "created"),
    ("ray.train.process_group.start", "created", "backend"),
)
_RANK = (
    ("python.start", "process", "loaded"),
    ("ray.train.function.call", "backend", "called"),
    ("trainingrun.function.import", "called", "imported"),
    ("trainingrun.checkpoint.fetch", "imported", "ready"),
    ("training.model.build", "ready", "session"),
    ("trainingrun.restore", "session", "restored"),
    ("training.loop.begin", "restored", "looped"),
    ("training.first_step", "looped", "stepped"),
)
_RANK_0 = (*_RANK, ("training.first_report", "ready", "reported"))
"""Phases, each between two marks of `store.start_traces`."""


class Span(NamedTuple):
    """One phase of one process."""

    name: str
    process: str
    """Which one, such as `rank 3`."""
    begin: float | None
    """Unix time in seconds; none: it is not known."""
    end: float | None
    pod: str = ""
    pid: int = 0
    """Number of the process; 0: it is none, or not known."""

    @property
    def seconds(self) -> float | None:
        """How long it took; the clocks of two machines may differ, and no phase is negative."""
        if self.begin is None or self.end is None:
            return None
        return max(self.end - self.begin, 0.0)


@dataclass(frozen=True)
class Trace:
    """The start of one worker group, until its first step is done."""

    start: StartTrace
    recovery: bool
    """Whether it follows a loss or an interruption."""
    origin: float
    """Unix time from which is counted: when the run was applied, the attempt or the driver began,
    or of a recovery when the last step before it ended."""
    spans: list[Span]
    end: float | None
    """When the first step ended, on the last rank; none: none has."""

    @property
    def title(self) -> str:
        """Which one it is, and how long it took."""
        kind = "Recovery" if self.recovery else "Start"
        size = self.start.world_size
        workers = "1 worker" if size == 1 else f"{size:,} workers"
        took = "no first step is known"
        if self.end is not None:
            took = f"{max(self.end - self.origin, 0.0):.1f} s until a step was done"
        whose = f"{kind} in attempt {self.start.attempt}"
        return f"{whose}, {workers} from step {self.start.step:,}: {took}"


class Row(NamedTuple):
    """A line of the table."""

    phase: str
    process: str
    begin: float | None
    """Seconds from the trace's origin; none: it is not known."""
    seconds: float | None


def of(documents: Sequence[StartTrace], began: Mapping[int, float] | None = None) -> list[Trace]:
    """The traces of a run, the first one first.

    Args:
        documents: As `start_traces.read` returns them.
        began: Unix time at which the attempts began, by number, of the first one when the run was
            applied; those that are not known are counted from their driver's begin.
    """
    found, attempts = [], set[int]()
    for index, one in enumerate(documents):
        is_first = one.attempt not in attempts and (index > 0 or len(documents) < MOST_READ)
        attempts.add(one.attempt)
        trace = _of_one(one, (began or {}).get(one.attempt) if is_first else None)
        if trace is not None:
            found.append(trace)
    return found


def began_of(run: Mapping[str, Any] | None) -> dict[int, float]:
    """When the attempts of a TrainingRun began, by number; of the first one when it was applied.

    None of a sweep: its traces are those of a trial, which begins while an attempt goes on.
    """
    if ((run or {}).get("spec") or {}).get("sweep"):
        return {}
    status = (run or {}).get("status") or {}
    times = {one.get("number"): one.get("startTime") for one in status.get("attempts") or ()}
    times[1] = ((run or {}).get("metadata") or {}).get("creationTimestamp") or times.get(1)
    return {
        number: time
        for number, text in times.items()
        if isinstance(number, int) and (time := unix_time(text)) is not None
    }


def latest(traces: Iterable[Trace]) -> list[Trace]:
    """The latest start and the latest recovery after it, as far as there are any."""
    by_kind = {trace.recovery: trace for trace in traces}
    return [by_kind[kind] for kind in (False, True) if kind in by_kind]


def _of_one(found: StartTrace, began: float | None) -> Trace | None:
    own = found.driver.times if found.driver is not None else {}
    first = min([*own.values(), *found.times.values()], default=None)
    if first is None:
        return None
    recovery = "last_step" in found.times
    origin = found.times["last_step"] if recovery else min(first, began or first)
    ends = [one.times["stepped"] for one in found.ranks if "stepped" in one.times]
    if not ends and "reported" in found.times:
        ends = [found.times["reported"]]
    return Trace(found, recovery, origin, list(_spans(found, origin)), max(ends, default=None))


def _spans(found: StartTrace, origin: float) -> Iterator[Span]:
    group = found.times
    if "saved" not in group and "lost" in group:
        group = {**group, "not_saved": group["lost"]}
    if found.driver is not None:
        yield from _phases(_DRIVER, "driver", found.driver, group)
    yield from _phases(_GROUP, "worker group", ProcessTimes(), group)
    for one in found.ranks:
        waited = one.times.get("loaded", origin) <= origin  # for a rank that it became
        begin = one.times.get("process", origin)
        times = {**one.times, "process": max(begin, origin)}
        if waited or "process" not in one.times:
            del times["process"]
        phases = _RANK_0 if one.rank == 0 and "session" not in times else _RANK
        yield from _phases(
            phases, f"rank {one.rank}", one.model_copy(update={"times": times}), group
        )


def _phases(
    phases: Iterable[tuple[str, str, str]],
    name: str,
    own: ProcessTimes,
    group: Mapping[str, float],
) -> Iterator[Span]:
    """Those of which begin and end are known."""
    times = {**group, **own.times}
    for phase, begin, end in phases:
        if begin in times and end in times:
            yield Span(phase, name, times[begin], times[end], own.pod, own.pid)


def rows(trace: Trace) -> list[Row]:
    """The phases of a trace as lines of a table, by their begin."""
    phases: dict[tuple[str, str], list[Span]] = {}
    for span in trace.spans:
        phases.setdefault((span.name, span.process.partition(" ")[0]), []).append(span)
    found = []
    for members in sorted(phases.values(), key=_first_begin):
        if len(members) > MOST_OF_A_PHASE:
            last = max(members, key=lambda span: span.end or 0.0)
            members = [last._replace(process=f"{last.process}, the last of {len(members)}")]
        for span in sorted(members, key=lambda span: span.process):
            begin = None if span.begin is None else span.begin - trace.origin
            found.append(Row(span.name, span.process, begin, span.seconds))
    return found


def _first_begin(members: Iterable[Span]) -> float:
    return min((span.begin for span in members if span.begin is not None), default=math.inf)


def longest(trace: Trace) -> str:
    """The phases that took longest, in a sentence; empty: none is known."""
    phases: dict[str, float] = {}
    for span in trace.spans:
        if span.seconds is not None:
            phases[span.name] = max(phases.get(span.name, 0.0), span.seconds)
    most = sorted(phases.items(), key=lambda one: -one[1])[:3]
    named = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in most)
    return f"Longest: {named}." if named else ""


def chrome(name: str, traces: Sequence[Trace]) -> dict[str, Any]:
    """The traces as the object format of Chrome's trace events, which Perfetto reads too.

    Source: "Trace Event Format": complete events, in microseconds, and the names of their tracks.

    Args:
        name: Of the run.
        traces: Each has a group of tracks, with a track for each process.
    """
    events: list[dict[str, Any]] = []
    for number, trace in enumerate(traces, 1):
        kind = "recovery" if trace.recovery else "start"
        start = trace.start
        title = f"{name} attempt {start.attempt} {kind} {start.fencing_token}-{start.group}"
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": title}})
        tracks: dict[str, int] = {}
        for span in trace.spans:
            if span.begin is None or span.seconds is None:
                continue
            if span.process not in tracks:
                tracks[span.process] = len(tracks) + 1
                track = {"pid": number, "tid": tracks[span.process], "args": {"name": span.process}}
                events.append({"ph": "M", "name": "thread_name", **track})
            attributes: dict[str, Any] = {"trainingrun.attempt": start.attempt}
            attributes |= {"k8s.pod.name": span.pod} if span.pod else {}
            attributes |= {"process.pid": span.pid} if span.pid else {}
            events.append(
                {
                    "ph": "X",
                    "name": span.name,
                    "cat": kind,
                    "ts": round(span.begin * 1e6),
                    "dur": round(span.seconds * 1e6),
                    "pid": number,
                    "tid": tracks[span.process],
                    "args": attributes,
                }
            )
    return {"displayTimeUnit": "ms", "traceEvents": events}
