"""What `list` and `get` print of a status. Pure; any field may be missing, as in a new run."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..local import tables
from ..local.plain import plain
from .durations import short

Run = Mapping[str, Any]

TRIAL_STATES = ("succeeded", "running", "pending", "stopped", "failed")
"""Counts in status.sweep, as `get` prints them."""


def listing(runs: Sequence[Run], now: datetime, with_namespace: bool, width: int | None) -> str:
    """One line per run, as kubectl shows them.

    Args:
        runs: As the API server gives them.
        now: The time.
        with_namespace: Whether a column says in which namespace each one is.
        width: Columns of the terminal; None: no limit.
    """
    heads = ["NAME", "PHASE", "PROGRESS", "STEP", "ATTEMPT", "PREEMPTIONS", "GOODPUT", "AGE"]
    rows = []
    for run in runs:
        status, metadata = run.get("status") or {}, run["metadata"]
        cells = [
            metadata["name"],
            status.get("phase", ""),
            _percent(status.get("progress", {}).get("percent")),
            step(status),
            str(status.get("attempt", "") or ""),
            str(status.get("disruptions", {}).get("preemptions", "")),
            _percent((status.get("goodput") or {}).get("percent")),
            _age(metadata.get("creationTimestamp"), now),
        ]
        rows.append([metadata["namespace"], *cells] if with_namespace else cells)
    if with_namespace:
        return tables.table(["NAMESPACE", *heads], rows, width, keys=2)
    return tables.table(heads, rows, width)


def details(run: Run) -> str:
    """The whole status of one run, in two columns."""
    status = run.get("status") or {}
    rows: list[tuple[str, object]] = []

    def row(name: str, value: object, indent: str = "") -> None:
        if value not in (None, "", {}):
            rows.append((indent + plain(name), value))

    row("name", f"{run['metadata']['namespace']}/{run['metadata']['name']}")
    row("phase", status.get("phase", "not seen by the operator yet"))
    row("step", step(status))
    progress = status.get("progress") or {}
    if progress.get("secondsLeft") is not None and status.get("phase") == "Running":
        row("time left", short(progress["secondsLeft"]))
    if progress.get("dataWaitShare") is not None:
        share, rank = progress["dataWaitShare"], progress.get("dataWaitRank")
        row("waiting for data", f"{share:.0%} of the time in steps (rank {rank})")
    if progress.get("communicationWaitShare") is not None:
        share, rank = progress["communicationWaitShare"], progress.get("communicationWaitRank")
        row("waiting for ranks", f"{share:.0%} of the time in steps (rank {rank})")
    slow = progress.get("slowestRank") or {}
    if slow:
        row(
            "slowest rank",
            f"{slow['rank']}{_on(slow)}: {slow['ownSeconds']:.3g} s of its own in a step, the "
            f"others' median is {slow['medianSeconds']:.3g} s",
        )
    row("memory", _memory(progress.get("memory") or {}))
    for warning in progress.get("warnings") or []:
        row("warning", warning)
    for name, value in (progress.get("metrics") or {}).items():
        row(name, value, indent="  ")
    checkpoint = status.get("checkpoint") or {}
    if checkpoint:
        row("checkpoint", f"step {checkpoint['step']}, {checkpoint['uri']}")
    restored = status.get("restoredFrom") or {}
    if restored.get("step") is not None:
        row("restored from", f"step {restored['step']}, {restored['uri']}")
    row("restarts", status.get("restarts"))
    for name, count in (status.get("disruptions") or {}).items():
        row(name, count or None)
    goodput = status.get("goodput") or {}
    if goodput:
        lost = ", ".join(f"{k} {v:.0f} s" for k, v in goodput.get("lostSeconds", {}).items() if v)
        row("goodput", f"{goodput['percent']}%" + (f" (lost: {lost})" if lost else ""))
    for attempt in status.get("attempts") or []:
        words = [attempt.get("outcome", ""), attempt.get("reason", ""), attempt.get("message", "")]
        row(f"attempt {attempt['number']}", " ".join(word for word in words if word))
    for condition in status.get("conditions") or []:
        row(
            condition["type"],
            f"{condition['status']} {condition['reason']}: {condition.get('message', '')}",
        )
    sweep = status.get("sweep") or {}
    if sweep:
        row("trials", ", ".join(f"{sweep[s]} {s}" for s in TRIAL_STATES if sweep.get(s)))
        row("best trial", sweep.get("best"))
    result = status.get("result") or {}
    row("result", result.get("checkpointUri"))
    return tables.pairs(rows)


def step(status: Mapping[str, Any]) -> str:
    """Steps done, of how many."""
    progress = status.get("progress") or {}
    if "step" not in progress:
        return ""
    total = progress.get("totalSteps")
    return f"{progress['step']}/{total}" if total else str(progress["step"])


def _memory(memory: Mapping[str, Any]) -> str:
    if not memory:
        return ""
    limit, growth = memory.get("limitBytes"), memory.get("bytesPerHour")
    text = f"{memory['usedBytes'] / 2**30:.1f} GiB"
    if limit:
        text += f" of {limit / 2**30:.1f} GiB"
    text += f" (rank {memory['rank']}{_on(memory)})"
    return f"{text}, {growth / 2**30:.1f} GiB more each hour" if growth else text


def _on(place: Mapping[str, Any]) -> str:
    return f" on node {place['node']}" if place.get("node") else ""


def _percent(value: Any) -> str:
    return "" if value is None else f"{value}%"


def _age(created: str | None, now: datetime) -> str:
    if not created:
        return ""
    return short((now - datetime.fromisoformat(created).astimezone(UTC)).total_seconds())
