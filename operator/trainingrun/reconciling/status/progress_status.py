"""The driver's document -> status.progress, status.checkpoint and the attempt's steps.

All ranks report their memory and the use of their accelerators every few seconds, also while no
step is done. A status that followed each of these measurements would be written as often.
"""

from math import isfinite
from typing import Any

from trainingrun_protocol.progress import (
    Hang,
    HungRank,
    Progress,
    RankMemory,
    RankRow,
    SlowestRank,
    SweepTable,
    TrialRow,
    TrialState,
)

from ...api.status import (
    MOST_RANKED,
    Attempt,
    CheckpointStatus,
    HangStatus,
    RunProgress,
    RunResult,
    SweepStatus,
)
from ...api.sweep_spec import Sweep
from ..context import ReconcileContext
from ..findings import Findings, StatusDraft
from ..losses import counting
from ..texts import URI, from_unix, short, written

MOST_METRICS = 50
"""Metrics kept in status; etcd limits the whole object to 1.5 MB and status is rewritten often."""

LONGEST_TEXT = 100
"""Characters of a metric that is text, and of a metric's name."""

LONGEST_MESSAGE = 300
"""Characters of the reason for which a trial failed."""

LONGEST_WARNING = 500
"""Characters of a warning."""

LARGEST = 2**53
"""A whole number beyond this is left out: JSON readers would change it."""

STEADY = {"used_bytes": 0.02, "limit_bytes": 0.0, "bytes_per_hour": 0.2}
"""Share by which a measurement of memory has to differ from what the status has."""

STEADY_USE = 0.05
"""The same for the use of accelerators, which is a share itself."""

LONGEST_NAME = 253
"""Characters of the name of a node or pod."""


def record_progress(context: ReconcileContext, draft: StatusDraft, attempt: Attempt) -> Findings:
    """Write what the driver newly reports: progress, checkpoint and the attempt's steps."""
    progress = context.progress(attempt.number)
    if progress is None or (0 < progress.fencing_token < draft.bookkeeping.fencing_token):
        return Findings()  # nothing, or an older driver's document that was read late
    changes: dict[str, Any] = {}
    if progress.checkpoint is not None:
        changes["checkpoint"] = CheckpointStatus(
            uri=progress.checkpoint.uri[:URI],
            step=progress.checkpoint.step,
            time=written(from_unix(progress.checkpoint.time)),
        )
    if progress.report_uri is not None:
        changes["report_uri"] = _uri(progress.report_uri)
    if draft.status.restored_from is not None and progress.restored_from is not None:
        changes["restored_from"] = draft.status.restored_from.model_copy(
            update={"step": progress.resumed_from_step}
        )
    if progress.step or progress.resumed_from_step is not None or draft.status.progress is None:
        changes["progress"] = run_progress(progress, draft.status.progress)
    if progress.hang is not None:
        changes["hang"] = hang(progress.hang)
    table = progress.trials
    if table is not None:
        changes["sweep"] = sweep(table)
    resumed = attempt.resumed_from_step
    steps = {
        "resumed_from_step": resumed if resumed is not None else progress.resumed_from_step,
        "last_step": max(attempt.last_step or 0, progress.step) or attempt.last_step,
    }
    changes["attempts"] = [
        one.model_copy(update=steps) if one.number == attempt.number else one
        for one in draft.status.attempts
    ]
    seen: dict[str, Any] = {}
    if progress.checkpoint is not None and progress.checkpoint.step > draft.bookkeeping.best_step:
        seen = {"attempts_without_progress": 0, "best_step": progress.checkpoint.step}
    if progress.step > max(attempt.last_step or 0, steps["resumed_from_step"] or 0):
        seen |= counting.after_new_step(draft.bookkeeping)
    return Findings(status=changes, bookkeeping=seen)


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


def result(progress: Progress | None, settings: Sweep | None = None) -> RunResult:
    """status.result, from the driver's final document alone: what is known from before it may be
    older than the result.
    """
    reported = progress.result if progress else None
    table = reported.sweep if reported else None
    best = next((one for one in table.trials if one.number == table.best), None) if table else None
    return RunResult(
        metrics=metrics(reported.metrics if reported else {}),
        checkpoint_uri=_uri(reported.checkpoint_uri if reported else None),
        best_checkpoint_uri=_uri(reported.best_checkpoint_uri if reported else None),
        trial=best.number if best else None,
        config=metrics(best.config) if best else None,
        trials=ranked(table, settings.mode) if table and settings else None,
    )


def ranked(table: SweepTable, mode: str) -> list[TrialRow]:
    """The best trials, best one first, as status.result has them; the runtime names the same first.

    `mode`: whether a smaller value is better, `min`, or a larger one, `max`.
    """
    sign = 1 if mode == "min" else -1
    rated = {
        one.number: (one.state is not TrialState.SUCCEEDED, sign * one.value, one.number, one)
        for one in table.trials
        if one.value is not None and isfinite(one.value) and one.state is not TrialState.FAILED
    }
    return [
        _trial(one) for *_, one in sorted(rated.values(), key=lambda row: row[:3])[:MOST_RANKED]
    ]


def sweep(table: SweepTable) -> SweepStatus:
    """status.sweep."""
    states = [one.state for one in table.trials]
    return SweepStatus(
        pending=states.count(TrialState.PENDING),
        running=states.count(TrialState.RUNNING),
        succeeded=states.count(TrialState.SUCCEEDED),
        stopped=states.count(TrialState.STOPPED),
        failed=states.count(TrialState.FAILED),
        best=table.best,
        trials=[_trial(one) for one in {one.number: one for one in table.trials}.values()],
    )


def waiting(known: SweepStatus) -> SweepStatus:
    """status.sweep once no driver runs: what was trained waits, or will not be trained further."""
    rows = [
        row.model_copy(update={"state": TrialState.PENDING})
        if row.state is TrialState.RUNNING
        else row
        for row in known.trials
    ]
    counts = {"running": 0, "pending": known.pending + known.running}
    return known.model_copy(update={**counts, "trials": rows})


def no_trial_runs(draft: StatusDraft) -> Findings:
    """No attempt runs."""
    known = draft.status.sweep
    if known is None or not known.running:
        return Findings()
    return Findings(status={"sweep": waiting(known)})


def _trial(row: TrialRow) -> TrialRow:
    """A trial within the bounds of a status."""
    return row.model_copy(
        update={
            "config": metrics(row.config),
            "value": row.value if isfinite(row.value or 0) else None,
            "checkpoint_uri": _uri(row.checkpoint_uri),
            "message": short(row.message, LONGEST_MESSAGE),
        }
    )


def _uri(reported: str | None) -> str | None:
    return reported[:URI] if reported else None


def run_progress(progress: Progress, former: RunProgress | None) -> RunProgress:
    """status.progress, from a document and the former one."""
    total, step = progress.total_steps, progress.step_seconds
    interval = progress.checkpoint_interval_seconds
    return RunProgress(
        step=progress.step,
        total_steps=total,
        percent=min(progress.step * 100 // total, 100) if total else None,
        seconds_left=round(progress.seconds_left) if progress.seconds_left is not None else None,
        checkpoint_interval_seconds=round(interval) if interval is not None else None,
        data_wait_share=share(progress.data_wait_share),
        data_wait_rank=progress.data_wait_rank,
        step_seconds=seconds(step) if step is not None else None,
        communication_wait_share=share(progress.communication_wait_share),
        communication_wait_rank=progress.communication_wait_rank,
        slowest_rank=slowest(progress),
        memory=memory(progress, former),
        ranks=ranks(progress, former),
        warnings=[short(warning, LONGEST_WARNING) for warning in progress.warnings] or None,
        metrics=metrics(progress.metrics),
        update_time=written(from_unix(progress.step_time)) if progress.step_time else None,
    )


def hang(reported: Hang) -> HangStatus:
    """status.hang."""
    rows = {
        one.rank: HungRank(
            rank=one.rank,
            node=_name(one.node),
            pod=_name(one.pod),
            where=short(one.where, LONGEST_NAME),
            hangs=one.hangs,
        )
        for one in reported.ranks
    }
    return HangStatus(
        time=written(from_unix(reported.time)),
        seconds=round(reported.seconds),
        message=short(reported.message, LONGEST_WARNING),
        ranks=[rows[rank] for rank in sorted(rows)],
        stacks=_uri(reported.stacks),
    )


def slowest(progress: Progress) -> SlowestRank | None:
    """The rank for which the others wait longest."""
    slow = progress.slowest_rank
    if slow is None:
        return None
    return SlowestRank(
        rank=slow.rank,
        node=_name(slow.node),
        own_seconds=seconds(slow.own_seconds),
        median_seconds=seconds(slow.median_seconds),
    )


def memory(progress: Progress, former: RunProgress | None) -> RankMemory | None:
    """The rank with the fullest memory."""
    fullest, known = progress.memory, former.memory if former is not None else None
    if fullest is None:
        return None
    same = known if known is not None and known.rank == fullest.rank else None
    return RankMemory(rank=fullest.rank, node=_name(fullest.node), **_memory_fields(fullest, same))


def ranks(progress: Progress, former: RunProgress | None) -> list[RankRow] | None:
    """Each rank that is reported, once: the API server refuses a number that is there twice."""
    known = {one.rank: one for one in (former.ranks if former is not None else None) or ()}
    rows = {
        one.rank: RankRow(
            rank=one.rank,
            node=_name(one.node),
            pod=_name(one.pod),
            step_seconds=seconds(one.step_seconds) if one.step_seconds is not None else None,
            data_wait_share=share(one.data_wait_share),
            communication_wait_share=share(one.communication_wait_share),
            **_memory_fields(one, known.get(one.rank)),
            accelerator_share=_use(one, known.get(one.rank)),
        )
        for one in progress.ranks
    }
    return [rows[rank] for rank in sorted(rows)] or None


def seconds(measured: float) -> float:
    """With three digits: more of them would only change from one poll to the next."""
    return float(f"{measured:.3g}")


def share(measured: float | None) -> float | None:
    """In whole percent."""
    return round(measured, 2) if measured is not None else None


def _name(reported: str | None) -> str | None:
    return short(reported, LONGEST_NAME) if reported else None


def _memory_fields(
    measured: RankMemory | RankRow, former: RankMemory | RankRow | None
) -> dict[str, Any]:
    return {
        name: _steady(getattr(former, name, None), getattr(measured, name), least)
        for name, least in STEADY.items()
    }


def _use(row: RankRow, known: RankRow | None) -> float | None:
    measured, former = row.accelerator_share, known.accelerator_share if known else None
    if measured is not None and former is not None and abs(measured - former) < STEADY_USE:
        return former
    return share(measured)


def _steady(former: int | None, measured: int | None, least: float) -> int | None:
    if former is None or measured is None or abs(measured - former) > least * former:
        return measured
    return former
