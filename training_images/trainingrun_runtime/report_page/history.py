"""What happened to a run: its attempts, its losses, and what else its drivers recorded. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from trainingrun_protocol.progress import RecordKind

from ..store.last_progress import Driver
from ..store.loss_documents import LossDocument
from .folder import RunFolder
from .timeline import AttemptRow, Loss, clock, unix_time


class Event(NamedTuple):
    """Something that happened."""

    time: float
    attempt: int
    kind: str
    lost: bool
    step: int | None
    place: str
    message: str


def attempts_of(status: Mapping[str, Any], drivers: Sequence[Driver]) -> list[AttemptRow]:
    """From the status, and from the bucket those that the status does not have."""
    newest = drivers[-1].attempt if drivers else 0
    found = {
        number: _of_drivers(number, members, number < newest)
        for number, members in _by_attempt(drivers)
    }
    for one in status.get("attempts") or []:
        number = int(one.get("number", 0))
        own = found.get(number)
        found[number] = AttemptRow(
            number,
            one.get("outcome", ""),
            one.get("reason") or "",
            unix_time(one.get("startTime")) or (own.start if own else None),
            unix_time(one.get("endTime")),
            one.get("resumedFromStep"),
            one.get("lastStep"),
            one.get("capacity", ""),
            one.get("message") or (own.message if own else ""),
        )
    return [found[number] for number in sorted(found)]


def _by_attempt(drivers: Iterable[Driver]) -> list[tuple[int, list[Driver]]]:
    groups: dict[int, list[Driver]] = {}
    for driver in drivers:
        groups.setdefault(driver.attempt, []).append(driver)
    return list(groups.items())


def _of_drivers(number: int, members: Sequence[Driver], over: bool) -> AttemptRow:
    documents = [one.progress for one in members if one.progress is not None]
    last = documents[-1] if documents else None
    outcome, message = "No record", "Its driver has left no record of what it did."
    if last is not None:
        outcome = last.state.phase
        message = last.failure.message if last.failure is not None else ""
        if not (last.state.final and members[-1].progress is last):
            outcome = "Lost" if over else outcome
            message = f"Last heard of at {clock(members[-1].seen)}."
    return AttemptRow(
        number,
        outcome,
        last.failure.kind if last and last.failure else "",
        members[0].began or None,
        members[-1].seen or None,
        documents[0].resumed_from_step if documents else None,
        max((one.step for one in documents), default=None),
        "",
        message,
    )


def events_of(drivers: Sequence[Driver]) -> list[Event]:
    """What the drivers have recorded, by time; the begin of the run is none."""
    progress = drivers[0].progress if drivers else None
    begins = progress.begins_until if progress is not None else 0
    return sorted(
        Event(
            record.time,
            driver.attempt,
            record.kind.value,
            record.kind.is_loss,
            record.step,
            _joined([record.pod, record.node]),
            record.message,
        )
        for first, driver in enumerate(drivers)
        if driver.progress is not None
        for record in driver.progress.records
        if first or record.number > begins or record.kind is not RecordKind.RESTORED or record.step
    )


MOST_IN_STATUS = 50
"""Losses in a status, which then drops the oldest: `MOST_LOSSES` of the operator."""


def losses_of(status: Mapping[str, Any], folder: RunFolder) -> list[Loss]:
    """The status has the newest ones with what Kubernetes knows of them, the bucket the others."""
    history = (status.get("disruptions") or {}).get("history") or []
    known = [
        Loss(
            unix_time(one.get("time")) or 0.0,
            one.get("attempt", 0),
            one.get("reason", ""),
            one.get("step"),
            one.get("lostSteps"),
            one.get("lostSeconds"),
            _joined([*(one.get("pods") or ()), *map(one.get, ("node", "zone", "capacity"))]),
            one.get("signs", ""),
            one.get("action", ""),
        )
        for one in history
    ]
    if 0 < len(known) < MOST_IN_STATUS:
        return known  # each one: a document may tell of it with another time
    since = min((loss.time for loss in known), default=math.inf)
    # A loss has two times: when the driver recorded it, and when the operator has seen it.
    return [*(loss for loss in map(_of_document, folder.losses) if loss.time < since - 60), *known]


def _of_document(found: LossDocument) -> Loss:
    spent = [each for each in (found.lost_work_seconds, found.recovery_seconds) if each is not None]
    return Loss(
        found.time,
        found.attempt,
        found.reason,
        found.step,
        found.lost_steps,
        sum(spent) if spent else None,
        _joined([found.pod, found.node]),
        found.message,
        found.action,
    )


def _joined(words: Iterable[str | None]) -> str:
    return ", ".join(word for word in words if word)
