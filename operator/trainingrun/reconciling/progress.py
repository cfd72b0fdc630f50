"""The runtime's document -> status.progress, status.checkpoint and the attempt's steps."""

from math import isfinite
from typing import Any

from ..api.contract import Progress, RunState
from ..api.status import Attempt, CheckpointStatus, RunProgress
from .draft import Draft
from .moments import from_unix, written
from .scene import Scene
from .texts import URI

MOST_METRICS = 50
"""Metrics kept in status; etcd limits the whole object to 1.5 MB and status is rewritten often."""

LONGEST_TEXT = 100
"""Characters of a metric that is text, and of a metric's name."""

LARGEST = 2**53
"""A whole number beyond this is left out: JSON readers would change it."""


def take_in(scene: Scene, draft: Draft, attempt: Attempt) -> Attempt:
    """Write what the driver newly told; the attempt with its steps."""
    word = scene.word(attempt.number)
    if word is None or (0 < word.epoch < draft.ledger.epoch):
        return attempt  # nothing, or an older driver's word that was read late
    _checkpoint(draft, word)
    if word.step or word.resumed_from_step is not None or draft.status.progress is None:
        draft.set(progress=_progress(word))
    return attempt.model_copy(
        update={
            "resumed_from_step": (
                attempt.resumed_from_step
                if attempt.resumed_from_step is not None
                else word.resumed_from_step
            ),
            "last_step": max(attempt.last_step or 0, word.step) or attempt.last_step,
        }
    )


def trains(word: Progress | None) -> bool:
    """Whether the driver says that steps are being done."""
    return word is not None and word.state is RunState.TRAINING


def metrics(reported: dict[str, Any]) -> dict[str, Any]:
    """What of the reported metrics fits a status: numbers and short texts, in their order."""
    kept: dict[str, Any] = {}
    for name, value in reported.items():
        if len(kept) == MOST_METRICS:
            break
        if isinstance(value, float) and not isfinite(value):
            kept[name[:LONGEST_TEXT]] = str(value)
        elif isinstance(value, bool | float) or (isinstance(value, int) and abs(value) <= LARGEST):
            kept[name[:LONGEST_TEXT]] = value
        elif isinstance(value, str):
            kept[name[:LONGEST_TEXT]] = value[:LONGEST_TEXT]
    return kept


def _progress(word: Progress) -> RunProgress:
    total = word.total_steps
    return RunProgress(
        step=word.step,
        total_steps=total,
        percent=min(word.step * 100 // total, 100) if total else None,
        seconds_left=round(word.seconds_left) if word.seconds_left is not None else None,
        metrics=metrics(word.metrics),
        update_time=written(from_unix(word.step_time)) if word.step_time else None,
    )


def _checkpoint(draft: Draft, word: Progress) -> None:
    told = word.checkpoint
    if told is None:
        return
    if told.step > draft.ledger.best_step:
        draft.note(fruitless=0, best_step=told.step)
    draft.set(
        checkpoint=CheckpointStatus(
            uri=told.uri[:URI], step=told.step, time=written(from_unix(told.time))
        )
    )
