"""What is counted and shown of TrainingRuns without reading each: the source of metrics."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..reconciling.texts import parsed
from .object_store import Object

SHOWN_CONDITIONS = ("Waiting", "Stalled")
"""Conditions that say of a run that it lacks something."""


class OneRun(NamedTuple):
    """What is shown of one run, as far as it is known; of one that has failed its phase alone.

    Times are Unix times in seconds.
    """

    name: str
    end_seen_at: float | None = None
    """When its end was seen; None: it has not ended."""
    conditions: tuple[tuple[str, str], ...] = ()
    """Type and reason of those of `SHOWN_CONDITIONS` that are true."""
    started_at: float | None = None
    step: int | None = None
    saved_at: float | None = None
    """When the newest checkpoint was committed."""
    checkpoint_interval_s: float | None = None
    seconds: float | None = None
    """status.goodput.seconds."""
    productive_s: float | None = None
    losses: int | None = None
    """Of all kinds, and attempts that infrastructure or the store ended without one."""
    hung_at: float | None = None
    """When the latest hang was found."""
    budget_share: float | None = None
    """What it has cost, of the amount that its budget allows."""


class RunSummary(NamedTuple):
    """What is counted of runs without reading each."""

    namespace: str
    phase: str
    ended: bool
    disruptions: tuple[tuple[str, int], ...]
    """Losses by kind, such as ("preemptions", 2)."""
    unit: str = ""
    """What `seconds` counts: accelerators or workers."""
    seconds: tuple[tuple[str, float], ...] = ()
    """Accelerator seconds by cause."""
    currency: str = ""
    money: tuple[tuple[str, float], ...] = ()
    """Amounts that are known, by kind."""
    one: OneRun | None = None
    """The run itself; None: it has succeeded, and nothing is shown of it."""


def summary_of(run: Object) -> RunSummary:
    """The summary of a TrainingRun."""
    status: Mapping[str, Any] = run.get("status") or {}
    cost = status.get("cost") or {}
    amounts = {"spent": "atLeast", "wasted": "wasted", "saved_by_spot": "savedBySpot"}
    phase = status.get("phase") or "Pending"
    disruptions = tuple(
        (kind, number)
        for kind, number in sorted((status.get("disruptions") or {}).items())
        if isinstance(number, int)
    )
    other = (status.get("seen") or {}).get("otherLosses", 0)
    losses = sum(number for _, number in disruptions) + (other if isinstance(other, int) else 0)
    return RunSummary(
        run["metadata"]["namespace"],
        phase,
        bool(status.get("completionTime")),
        disruptions,
        cost.get("unit", ""),
        tuple(sorted((cost.get("seconds") or {}).items())),
        cost.get("currency", ""),
        tuple((kind, cost[field]) for kind, field in amounts.items() if field in cost),
        _one(run, status, phase, losses),
    )


def _one(run: Object, status: Mapping[str, Any], phase: str, losses: int) -> OneRun | None:
    name = run["metadata"]["name"]
    if status.get("completionTime"):
        return OneRun(name, _end_seen_at(status)) if phase == "Failed" else None
    progress, goodput = status.get("progress") or {}, status.get("goodput") or {}
    checkpoint, hang = status.get("checkpoint") or {}, status.get("hang") or {}
    budget = _budget(run, status)
    spent = (status.get("cost") or {}).get("atLeast")
    return OneRun(
        name,
        conditions=tuple(
            (condition["type"], condition["reason"])
            for condition in status.get("conditions") or ()
            if condition["type"] in SHOWN_CONDITIONS and condition["status"] == "True"
        ),
        started_at=_unix(status.get("startTime")),
        step=progress.get("step"),
        saved_at=_unix(checkpoint.get("time")),
        checkpoint_interval_s=progress.get("checkpointIntervalSeconds"),
        seconds=goodput.get("seconds"),
        productive_s=goodput.get("productiveSeconds"),
        losses=losses,
        hung_at=_unix(hang.get("time")),
        budget_share=spent / budget if budget and spent is not None else None,
    )


def _budget(run: Object, status: Mapping[str, Any]) -> float | None:
    """The amount that is enforced, as of `defaults.resolved` and `within_limits`; None: there is
    none.
    """
    kept = status.get("defaults") or {}
    asked = (_amount(run.get("spec")), _amount(kept.get("spec")))
    wanted = next((amount for amount in asked if amount is not None), None)
    limits = [(source.get("maximum") or {}) for source in kept.get("sources") or ()]
    amounts = [wanted, *(limit.get("budgetAmount") for limit in limits)]
    return min((amount for amount in amounts if amount is not None), default=None)


def _amount(spec: Mapping[str, Any] | None) -> float | None:
    amount: float | None = ((spec or {}).get("budget") or {}).get("amount")
    return amount


def _end_seen_at(status: Mapping[str, Any]) -> float | None:
    """An operator that was away sees a failure late, and alerts are to name it even so."""
    attempts = status.get("attempts") or ()
    times = map(_unix, (status["completionTime"], *(one.get("endTime") for one in attempts)))
    return max((time for time in times if time is not None), default=None)


def _unix(time: str | None) -> float | None:
    """Seconds; None: there is no time, or none that can be read."""
    try:
        return parsed(time).timestamp() if time else None
    except (ValueError, OverflowError):
        return None
