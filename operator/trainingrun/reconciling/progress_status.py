"""The runtime's document -> status.progress, status.checkpoint and the attempt's steps."""

from math import isfinite
from typing import Any

from ..api.contract import Progress, RunState
from ..api.status import Attempt, CheckpointStatus, RunProgress
from .context import ReconcileContext
from .plan_builder import PlanBuilder
from .texts import URI
from .timestamps import from_unix, written

MOST_METRICS = 50
"""Metrics kept in status; etcd limits the whole object to 1.5 MB and status is rewritten often."""

LONGEST_TEXT = 100
"""Characters of a metric that is text, and of a metric's name."""

LARGEST = 2**53
"""A whole number beyond this is left out: JSON readers would change it."""


def record_progress(context: ReconcileContext, builder: PlanBuilder, attempt: Attempt) -> Attempt:
    """Write what the driver newly told; the attempt with its steps."""
    progress = context.progress(attempt.number)
    if progress is None or (0 < progress.epoch < builder.bookkeeping.epoch):
        return attempt  # nothing, or an older driver's word that was read late
    _checkpoint(builder, progress)
    if progress.step or progress.resumed_from_step is not None or builder.status.progress is None:
        builder.update_status(progress=_progress(progress))
    return attempt.model_copy(
        update={
            "resumed_from_step": (
                attempt.resumed_from_step
                if attempt.resumed_from_step is not None
                else progress.resumed_from_step
            ),
            "last_step": max(attempt.last_step or 0, progress.step) or attempt.last_step,
        }
    )


def trains(progress: Progress | None) -> bool:
    """Whether the driver says that steps are being done."""
    return progress is not None and progress.state is RunState.TRAINING


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


def _progress(progress: Progress) -> RunProgress:
    total = progress.total_steps
    return RunProgress(
        step=progress.step,
        total_steps=total,
        percent=min(progress.step * 100 // total, 100) if total else None,
        seconds_left=round(progress.seconds_left) if progress.seconds_left is not None else None,
        metrics=metrics(progress.metrics),
        update_time=written(from_unix(progress.step_time)) if progress.step_time else None,
    )


def _checkpoint(builder: PlanBuilder, progress: Progress) -> None:
    told = progress.checkpoint
    if told is None:
        return
    if told.step > builder.bookkeeping.best_step:
        builder.update_bookkeeping(attempts_without_progress=0, best_step=told.step)
    builder.update_status(
        checkpoint=CheckpointStatus(
            uri=told.uri[:URI], step=told.step, time=written(from_unix(told.time))
        )
    )
