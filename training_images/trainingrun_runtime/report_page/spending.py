"""Where the time of a run and of its accelerators went, and what that has cost. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainingrun_protocol.plain_text import money_text
from trainingrun_protocol.progress import Progress, RunState, done_again

from ..store.last_progress import Driver

_CAUSES = (
    ("productive", "training", "Steps that counted"),
    ("queue", "queue", "Waiting for admission or capacity"),
    ("startup", "starting", "From pods to the first step, in a sweep of each trial"),
    ("fewerWorkers", "lost", "Training without the workers that were missing"),
    ("lostWork", "lost", "Steps that were done again"),
    ("recovery", "paused", "Time without training after the first step"),
    ("checkpoint", "saving", "Training stopped for checkpoints"),
)
"""Fields of the status' goodput, the color of each, and what it is."""

_HELD = (
    ("training", "training", "Steps that counted"),
    ("saving", "saving", "Training stopped for checkpoints"),
    ("lost", "lost", "Steps done again, and time without training after the first step"),
    ("starting", "starting", "Before the first step, in a sweep of each trial"),
    ("waiting", "queue", "Held by some pods while others had no node"),
)
"""Fields of the status' cost, as `_CAUSES`."""


class Cause(NamedTuple):
    """Where time went."""

    kind: str
    label: str
    seconds: float
    percent: float


def cost_of(status: Mapping[str, Any]) -> tuple[list[Cause], str, list[tuple[str, str]]]:
    """Accelerator seconds by cause, what is counted, and money; the operator alone knows them."""
    cost = status.get("cost") or {}
    seconds = cost.get("seconds") or {}
    whole = sum(seconds.get(name, 0.0) for name, _, _ in _HELD)
    held = [
        Cause(kind, label, seconds.get(name, 0.0), seconds.get(name, 0.0) / whole * 100)
        for name, kind, label in _HELD
        if seconds.get(name, 0.0) > 0
    ]
    currency = cost.get("currency") or ""
    amounts = [
        ("In all", cost.get("amount")),
        ("At least", cost.get("atLeast") if cost.get("amount") is None else None),
        ("Not in steps that counted", cost.get("wasted")),
        ("Saved by spot nodes", cost.get("savedBySpot")),
    ]
    money = [
        (name, f"{money_text(amount)} {currency}") for name, amount in amounts if amount is not None
    ]
    return held, cost.get("unit", "accelerator"), money


def causes_of(
    status: Mapping[str, Any], drivers: Sequence[Driver], workers: int | None = None
) -> tuple[int | None, list[Cause]]:
    """Goodput in percent, and where the time went; without a status from the drivers' own sums.

    Args:
        status: Of the TrainingRun; empty where there is none.
        drivers: The first one first.
        workers: Of the whole run; none: not known.
    """
    if goodput := status.get("goodput"):
        lost = goodput.get("lostSeconds") or {}
        spent = {"productive": goodput.get("productiveSeconds", 0.0), **lost}
        percent = goodput.get("percent", 0)
    else:
        spent = _spent(drivers, workers)
        whole = sum(spent.values())
        percent = int(spent["productive"] * 100 / whole) if whole > 0 else None
    whole = sum(spent.get(name, 0.0) for name, _, _ in _CAUSES)
    if whole <= 0:
        return None, []
    return percent, [
        Cause(kind, label, spent.get(name, 0.0), spent.get(name, 0.0) / whole * 100)
        for name, kind, label in _CAUSES
        if spent.get(name, 0.0) > 0
    ]


def _share(own: Progress, workers: int | None) -> float:
    """Of all workers those that have trained, on average, as in the operator's goodput."""
    seconds = sum(each.seconds for each in own.sizes)
    if not workers or seconds <= 0:
        return 1.0
    return min(sum(each.workers * each.seconds for each in own.sizes) / (seconds * workers), 1.0)


def _spent(drivers: Sequence[Driver], workers: int | None) -> dict[str, float]:
    """Seconds by cause. What a later driver did again, by its share of its driver's steps."""
    spent = {name: 0.0 for name, _, _ in _CAUSES}
    known = [each for each in drivers if each.progress is not None]
    for index, driver in enumerate(known):
        own = driver.progress
        if own is None:
            continue
        later = known[index + 1].progress if index + 1 < len(known) else None
        resumed = None if later is None else later.resumed_from_step
        steps = own.resumed_from_step or 0, own.step
        lost = 0.0 if resumed is None else done_again(own.seconds.productive, *steps, resumed)
        counted = (own.seconds.productive - lost) * _share(own, workers)
        spent["productive"] += counted
        spent["fewerWorkers"] += own.seconds.productive - lost - counted
        spent["lostWork"] += own.seconds.lost_work + lost
        spent["checkpoint"] += own.seconds.checkpoint
        spent["recovery"] += own.seconds.recovery
        spent["startup" if index == 0 else "recovery"] += own.seconds.startup
        if later is not None and own.state is not RunState.SUSPENDED:
            spent["recovery"] += max(known[index + 1].began - driver.seen, 0.0)
    return spent
