"""One progress document from those of all trials; pure."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from trainingrun_protocol.contract import ContractSweep
from trainingrun_protocol.progress import (
    MOST_RECORDS,
    MOST_WARNINGS,
    LastCheckpoint,
    Progress,
    Record,
    RecordKind,
    RunState,
    Seconds,
    TrialRow,
    TrialState,
)
from trainingrun_protocol.wire import Wire

from . import record
from .record import Trial

LARGEST = 240 * 1024
"""Bytes of a document. The operator reads none of more than 256 KiB (`MAX_BYTES`)."""
LONGEST_MESSAGE = 100
"""Characters of a trial's message in a document that would be larger."""

_LESS: tuple[Callable[[TrialRow], dict[str, Any]], ...] = (
    lambda row: {"message": row.message[:LONGEST_MESSAGE]},
    lambda _: {"config": {}, "checkpoint_uri": None},
    lambda _: {"message": ""},
)
"""What a trial has less of in such a document, each only where those before are not enough."""


class Summary:
    """Adds up what the trials of one driver report.

    Args:
        sweep: the contract's sweep.
        trials: as this driver begins; the steps of one that is under way are those that its newest
            checkpoint holds.
    """

    def __init__(self, sweep: ContractSweep, trials: Mapping[int, Trial]) -> None:
        self._sweep = sweep
        self._resumed = sum(trial.step for trial in trials.values())
        # Until a trial has committed a checkpoint of its own in this driver.
        self._saved = {trial.number: trial.step for trial in trials.values()}
        self._records: list[Record] = []
        self._seen: dict[int, int] = {}  # trial -> number of its last record
        self._before = Seconds()  # of legs that are over
        self._step_time: float | None = None

    def leg_ended(self, number: int, document: Progress) -> None:
        """The trial begins again, with another document; this one counts as it is."""
        self._add_records(number, document)
        self._seen.pop(number, None)
        self._before = _sum([self._before, document.seconds])

    def progress(
        self, trials: Mapping[int, Trial], documents: Mapping[int, Progress], head: Progress
    ) -> Progress:
        """The document of the whole sweep.

        Args:
            trials: where they stand.
            documents: of the trials that this driver has begun.
            head: what the driver itself knows, in a document with nothing of the trials.
        """
        for number, document in sorted(documents.items()):
            self._add_records(number, document)
        running = [
            found
            for number, found in documents.items()
            if not trials[number].state.final and not found.state.final
        ]
        best = record.best(trials, self._sweep.mode)
        step = sum(trial.step for trial in trials.values())
        last_step = max((f.step_time for f in documents.values() if f.step_time), default=None)
        self._step_time = max(self._step_time or 0.0, last_step or 0.0) or None
        waiting = [f for f in documents.values() if f.storage_error and not f.state.final]
        stored = min(waiting, key=lambda f: f.storage_error_since or 0.0, default=head)
        if head.storage_error is not None:
            stored = head
        in_result = head.result is not None and head.result.sweep is not None
        waits = [f for f in running if f.data_wait_share is not None]
        slowest = max(waits, key=lambda f: f.data_wait_share or 0.0, default=head)
        talks = [f for f in running if f.communication_wait_share is not None]
        most = max(talks, key=lambda f: f.communication_wait_share or 0.0, default=head)
        whole = head.model_copy(
            update={
                "state": _state(running, self._step_time is not None)
                if not head.state.final
                else head.state,
                "resumed_from_step": self._resumed,
                "step": step,
                "step_time": self._step_time,
                "total_steps": _total(trials, documents),
                "world_size": sum(f.world_size for f in running if f.state is RunState.TRAINING),
                "data_wait_share": slowest.data_wait_share,
                "data_wait_rank": slowest.data_wait_rank,
                "communication_wait_share": most.communication_wait_share,
                "communication_wait_rank": most.communication_wait_rank,
                "standstill": _standstill(documents) if not head.state.final else None,
                **_hangs(documents),
                "warnings": [
                    f"trial {number}: {warning}"
                    for number, found in sorted(documents.items())
                    if not trials[number].state.final and not found.state.final
                    for warning in found.warnings
                ][-MOST_WARNINGS:],
                "metrics": best.metrics if best else {},
                "checkpoint": self._checkpoint(documents),
                "records": self._records[-MOST_RECORDS:],
                "seconds": self._seconds(documents.values()),
                "lost_nodes": sorted({node for f in documents.values() for node in f.lost_nodes}),
                "storage_error": stored.storage_error,
                "storage_error_since": stored.storage_error_since,
                # Once: with the table of a large sweep twice nobody reads the document.
                "sweep": None if in_result else record.SweepRecord.of(trials, self._sweep).table(),
            }
        )
        return bounded(whole, self._sweep.mode)

    def _add_records(self, number: int, document: Progress) -> None:
        stops = (
            one for one in document.records if one.kind is RecordKind.RESTORED or one.kind.is_loss
        )
        first = next(stops, None)
        for found in document.records:
            if found.number <= self._seen.get(number, 0):
                continue
            self._seen[number] = found.number
            # A failed trial is in the table, and is no failure of the run. That a leg begins where
            # another one has ended is nothing that happened to it, and a trial that begins while
            # others train has followed no loss of theirs.
            begins = (
                found is first
                and found.kind is RecordKind.RESTORED
                and (
                    document.restored_from is not None
                    or (self._step_time is not None and not found.step)
                )
            )
            if found.kind is RecordKind.APPLICATION_ERROR or begins:
                continue
            last = self._records[-1].number if self._records else 0
            message = f"trial {number}: {found.message}"
            # Its step is the trial's own, and the document's is that of all trials.
            mine = {"number": last + 1, "message": message, "step": None}
            self._records = [*self._records, found.model_copy(update=mine)][-MOST_RECORDS:]

    def _checkpoint(self, documents: Mapping[int, Progress]) -> LastCheckpoint | None:
        """The newest one; its step is the sum over the newest ones of all trials."""
        found = {n: f.checkpoint for n, f in documents.items() if f.checkpoint is not None}
        newest = max(found.values(), key=lambda one: one.time, default=None)
        if newest is None:
            return None
        self._saved |= {number: one.step for number, one in found.items()}
        return newest.model_copy(update={"step": sum(self._saved.values())})

    def _seconds(self, documents: Iterable[Progress]) -> Seconds:
        """The mean of the trials that are trained at once."""
        spent = _sum([self._before, *(document.seconds for document in documents)])
        return Seconds(
            **{name: value / self._sweep.concurrency for name, value in spent.model_dump().items()}
        )


def bounded(document: Progress, mode: str) -> Progress:
    """The document within `LARGEST`: its table has less of trials, of the worst ones first.

    Each trial keeps its number, state, step and value.
    """
    result, over = document.result, _size(document) - LARGEST
    table = document.sweep or (result.sweep if result is not None else None)
    if table is None or over <= 0:
        return document
    worst_first = sorted(table.trials, key=partial(record.rank, mode), reverse=True)
    rows = {row.number: row for row in worst_first}
    for less in _LESS:
        for number, row in rows.items():
            if over > 0:
                rows[number] = row.model_copy(update=less(row))
                over -= _size(row) - _size(rows[number])
    table = table.model_copy(update={"trials": [rows[number] for number in sorted(rows)]})
    if document.sweep is not None:
        return document.model_copy(update={"sweep": table})
    kept = result.model_copy(update={"sweep": table}) if result is not None else None
    return document.model_copy(update={"result": kept})


def _size(message: Wire) -> int:
    """Bytes as `progress.document` writes it."""
    return len(json.dumps(message.to_dict()))


def _sum(spent: Iterable[Seconds]) -> Seconds:
    found = list(spent)
    return Seconds(**{n: sum(getattr(one, n) for one in found) for n in Seconds.model_fields})


def _state(running: list[Progress], began: bool) -> RunState:
    states = {found.state for found in running}
    if RunState.TRAINING in states or (began and RunState.RECOVERING not in states):
        return RunState.TRAINING
    return RunState.RECOVERING if RunState.RECOVERING in states else RunState.STARTING


def _hangs(documents: Mapping[int, Progress]) -> dict[str, Any]:
    """The latest hang of a trial, and the pods with processes that could not be ended."""
    found = [
        one.hang.model_copy(
            update={
                "message": f"trial {number}: {one.hang.message}",
                "under_way": one.hang.under_way and not one.state.final,
            }
        )
        for number, one in documents.items()
        if one.hang is not None
    ]
    stuck = {pod for one in documents.values() if not one.state.final for pod in one.stuck_pods}
    return {
        "hang": max(found, key=lambda hang: hang.time, default=None),
        "stuck_pods": sorted(stuck),
    }


def _standstill(documents: Mapping[int, Progress]) -> str | None:
    """Ranks of a trial that wait for others, of the first such trial.

    Also of one that is to be stopped: code without a session ends at its next report alone.
    """
    return next(
        (
            f"trial {number}: {found.standstill}"
            for number, found in sorted(documents.items())
            if found.standstill is not None and not found.state.final
        ),
        None,
    )


def _total(trials: Mapping[int, Trial], documents: Mapping[int, Progress]) -> int | None:
    """Steps of all trials; those that have not begun count as the mean of the others."""
    known = {
        number: trial.step
        if trial.state.final
        else documents[number].total_steps
        if number in documents
        else None
        for number, trial in trials.items()
    }
    totals = [f.total_steps for f in documents.values() if f.total_steps is not None]
    if not totals and any(total is None for total in known.values()):
        return None
    mean = round(sum(totals) / len(totals)) if totals else 0
    return sum(mean if total is None else total for total in known.values())


def update(trial: Trial, document: Progress) -> Trial:
    """The trial as its document shows it; a decision to stop it stands unless it is done."""
    metrics = document.result.metrics if document.result else document.metrics
    # What it restores is not known yet: it has the steps that its newest checkpoint holds.
    starts = document.resumed_from_step is None and not document.step
    changes: dict[str, object] = {
        "step": trial.step if starts else max(document.step, 0),
        "metrics": metrics or trial.metrics,
    }
    if document.checkpoint is not None:
        changes["checkpoint_uri"] = document.checkpoint.uri
    if document.result is not None:
        changes["checkpoint_uri"] = document.result.checkpoint_uri
        changes["best_checkpoint_uri"] = document.result.best_checkpoint_uri
    if document.state is RunState.SUCCEEDED:
        changes["state"] = TrialState.SUCCEEDED
        changes["step"] = max(document.step, trial.step)
    return trial.model_copy(update=changes)
