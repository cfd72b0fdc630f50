"""The conditions, and the phase that summarizes them.

Policies find facts; only here do they become conditions.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from ...api.progress import Progress
from ...api.reasons import WAITS, ConditionReason, Truth
from ...api.status import Attempt, Condition, ConditionType, Phase, RunStatus
from ...api.storage_spec import Checkpoints
from .. import pod_status
from ..bookkeeping import Bookkeeping
from ..context import ReconcileContext
from ..diagnosis import silence
from ..findings import Blocker, Findings, RunFailure
from ..texts import short
from ..timestamps import written
from . import progress_status

ALIVE = (Phase.STARTING, Phase.RUNNING, Phase.RECOVERING)
"""Phases of an attempt that has its pods."""


class NewCondition(NamedTuple):
    """What one condition is to say."""

    type: ConditionType
    status: Truth
    reason: ConditionReason
    message: str = ""


def settle_after_the_end(
    context: ReconcileContext, status: RunStatus, blocker: Blocker | None
) -> Findings:
    """What keeps the leftovers of an ended run; nothing else in its status changes any more, but
    the generation that it describes.
    """
    generation = context.run.metadata.generation
    changes: dict[str, Any] = (
        {} if status.observed_generation == generation else {"observed_generation": generation}
    )
    waiting, stalled = (
        _former(status, kind) for kind in (ConditionType.WAITING, ConditionType.STALLED)
    )
    blocked = any(
        known is not None and known.status == "True" and known.reason != ConditionReason.FAILED
        for known in (waiting, stalled)
    )
    if blocker or blocked:
        failed = _former(status, ConditionType.FAILED)
        failure = failed and failed.status == "True" and _of_failure(failed.message)
        found = [_waiting(blocker), _stalled(blocker, failure or None)]
        changes["conditions"] = _merged(context, status, found)
    return Findings(status=changes)


def settle_while_deleted(
    context: ReconcileContext, status: RunStatus, blocker: Blocker | None
) -> Findings:
    """The phase and the conditions of a deleted run, which finalizers of others hold."""
    message = (
        "The TrainingRun is deleted and its pods are freed; it is gone once its finalizers "
        f"({', '.join(context.run.metadata.finalizers)}) are removed"
    )
    ready = NewCondition(ConditionType.READY, "False", ConditionReason.DELETING, message)
    return Findings(
        status={
            "conditions": _merged(context, status, [ready, _waiting(blocker), _stalled(blocker)]),
            "phase": Phase.DELETING,
            "next_attempt_time": None,
            "observed_generation": context.run.metadata.generation,
        }
    )


def settle(
    context: ReconcileContext,
    status: RunStatus,
    bookkeeping: Bookkeeping,
    blocker: Blocker | None,
    refused: Blocker | None,
    run_failure: RunFailure | None,
) -> Findings:
    """All conditions and the phase, from what the policies found.

    Args:
        context: What was observed.
        status: The status so far.
        bookkeeping: The bookkeeping so far.
        blocker: What keeps the run from continuing.
        refused: Why the spec cannot be used.
        run_failure: Why the run has failed, where this reconcile found so.
    """
    attempt = status.running_attempt
    progress = context.live_progress(attempt.number) if attempt else None
    blocker = None if status.has_ended else blocker
    kept = attempt is not None and _not_read_yet(context, status, bookkeeping, attempt)
    found = [
        _accepted(context, bookkeeping, refused, attempt),
        *([] if kept else [_ready(context, status, bookkeeping, progress, run_failure)]),
        _suspended(context, status, bookkeeping),
        _waiting(blocker),
        _stalled(blocker, _ending(status, refused, run_failure)),
        *_ended(status, run_failure),
    ]
    phase = _phase(context, status, bookkeeping, attempt, progress, run_failure)
    return Findings(
        status={
            "conditions": _merged(context, status, found),
            "phase": context.run.status.phase if kept else phase,
            "observed_generation": context.run.metadata.generation,
        }
    )


def _accepted(
    context: ReconcileContext,
    bookkeeping: Bookkeeping,
    refused: Blocker | None,
    attempt: Attempt | None,
) -> NewCondition:
    if refused:
        return NewCondition(ConditionType.ACCEPTED, "False", refused.reason, refused.message)
    # With the defaults of fields that a former operator did not know.
    known = {**Checkpoints().to_dict(), **bookkeeping.checkpoints}
    if attempt and bookkeeping.checkpoints and known != context.run.spec.checkpoints.to_dict():
        return NewCondition(
            ConditionType.ACCEPTED,
            "True",
            ConditionReason.FROM_NEXT_ATTEMPT,
            f"The spec can be used; attempt {attempt.number} goes on with the checkpoints that it "
            "began with, and the edited ones apply from the next attempt on; suspend: true, then "
            "false, begins it",
        )
    return NewCondition(
        ConditionType.ACCEPTED, "True", ConditionReason.VALID, "The spec can be used"
    )


def _waiting(blocker: Blocker | None) -> NewCondition:
    """What may pass by itself, or stops nothing: tools that read conditions do not take it for a
    failure, as they do Stalled.
    """
    if blocker and blocker.reason in WAITS:
        return NewCondition(ConditionType.WAITING, "True", blocker.reason, blocker.message)
    return NewCondition(ConditionType.WAITING, "False", ConditionReason.NOTHING_IS_MISSING)


def _stalled(*blockers: Blocker | None) -> NewCondition:
    """What somebody has to correct: the first of these that is no mere wait."""
    for blocker in blockers:
        if blocker and blocker.reason not in WAITS:
            return NewCondition(ConditionType.STALLED, "True", blocker.reason, blocker.message)
    return NewCondition(ConditionType.STALLED, "False", ConditionReason.NOTHING_IS_MISSING)


def _ending(
    status: RunStatus, refused: Blocker | None, run_failure: RunFailure | None
) -> Blocker | None:
    """The run's failure, or why no attempt of it begins."""
    if run_failure:
        return _of_failure(_why(status, run_failure))
    if status.running_attempt or status.has_ended:
        return None  # what runs goes on
    return refused


def _of_failure(message: str) -> Blocker:
    return Blocker(ConditionReason.FAILED, message)


def _not_read_yet(
    context: ReconcileContext, status: RunStatus, bookkeeping: Bookkeeping, attempt: Attempt
) -> bool:
    """Whether this process has not read the driver's progress yet, and nothing contradicts the
    last status: a restarted operator does not show a run that trains as one that starts.
    """
    former = context.run.status
    if former.attempt != attempt.number or former.phase is None or status.has_ended:
        return False
    if context.progress(attempt.number) is not None:
        return False
    if not context.can_be_empty:
        return former.phase in (*ALIVE, Phase.QUEUED)
    head, job = context.head(attempt.number), context.job(attempt.number)
    return (
        former.phase in ALIVE
        and head is not None
        and pod_status.running(head)
        and pod_status.uid(head) == former.seen.get("head")
        and status.disruptions == former.disruptions
        and job is not None
        and silence.job_status(job) == "RUNNING"
        and silence.every_pod_runs(context, bookkeeping, attempt)
    )


def _ready(
    context: ReconcileContext,
    status: RunStatus,
    bookkeeping: Bookkeeping,
    progress: Progress | None,
    run_failure: RunFailure | None,
) -> NewCondition:
    """Whether the run is where its spec wants it: it trains, is suspended, or has succeeded."""
    wanted = silence.wanted_workers(context, bookkeeping)
    if progress is not None and progress.sweep is not None:
        # At a sweep's end fewer trials are left than could be trained at once.
        left = sum(not trial.state.final for trial in progress.sweep.trials)
        wanted = min(wanted, left * context.run.spec.workers.count)
    kind = ConditionType.READY
    if progress and progress_status.trains(progress) and progress.world_size >= wanted:
        message = "; ".join([f"{wanted} workers train", *progress.warnings])
        return NewCondition(kind, "True", ConditionReason.TRAINING, message)
    if run_failure:
        return NewCondition(kind, "False", ConditionReason.FAILED)
    if status.has_ended:
        return NewCondition(kind, "True", ConditionReason.SUCCEEDED)
    if context.run.spec.suspend and bookkeeping.suspended_since is not None:
        return NewCondition(kind, "True", ConditionReason.SUSPENDED)
    until = status.next_attempt_time
    waits = status.running_attempt is None and bookkeeping.suspended_since is None
    message = f"The next attempt begins at {until}" if waits and until else ""
    return NewCondition(kind, "False", ConditionReason.NOT_TRAINING, message)


def _suspended(
    context: ReconcileContext, status: RunStatus, bookkeeping: Bookkeeping
) -> NewCondition:
    kind = ConditionType.SUSPENDED
    if status.has_ended:
        return NewCondition(kind, "False", ConditionReason.ENDED)
    if bookkeeping.suspended_since is not None:
        message = "Every pod is gone; suspend: false goes on"
        return NewCondition(kind, "True", ConditionReason.SUSPENDED, message)
    if context.run.spec.suspend:
        message = "A checkpoint is made and pods are freed"
        return NewCondition(kind, "False", ConditionReason.SUSPENDING, message)
    return NewCondition(kind, "False", ConditionReason.NOT_ASKED)


def _ended(status: RunStatus, cause: RunFailure | None) -> tuple[NewCondition, NewCondition]:
    succeeded, failed = ConditionType.SUCCEEDED, ConditionType.FAILED
    if cause is not None:
        return (
            NewCondition(failed, "True", cause.reason, _why(status, cause)),
            NewCondition(succeeded, "False", ConditionReason.FAILED),
        )
    if status.has_ended:
        return (
            NewCondition(succeeded, "True", ConditionReason.DONE, "The training is done"),
            NewCondition(failed, "False", ConditionReason.SUCCEEDED),
        )
    return (
        NewCondition(succeeded, "False", ConditionReason.NOT_YET),
        NewCondition(failed, "False", ConditionReason.NOT_YET),
    )


def _why(status: RunStatus, cause: RunFailure) -> str:
    """The budget's message and what ended the last attempt, which explains most."""
    last = status.attempts[-1].message if status.attempts else ""
    return f"{cause.message}: {last}" if last and last != cause.message else cause.message


def _phase(
    context: ReconcileContext,
    status: RunStatus,
    bookkeeping: Bookkeeping,
    attempt: Attempt | None,
    progress: Progress | None,
    run_failure: RunFailure | None,
) -> Phase:
    if status.has_ended:
        return Phase.FAILED if run_failure else Phase.SUCCEEDED
    if bookkeeping.suspended_since is not None:
        return Phase.SUSPENDED
    if attempt is None:
        return _between_attempts(context, status)
    if context.suspended_by_queue(attempt.number):
        return Phase.QUEUED
    if progress_status.trains(progress):
        return Phase.RUNNING
    trained = any(known.last_step for known in status.attempts)
    lost = [known for known in status.attempts if known.outcome in ("Failed", "Lost")]
    return Phase.RECOVERING if trained or lost else Phase.STARTING


def _between_attempts(context: ReconcileContext, status: RunStatus) -> Phase:
    last = status.last_attempt
    if last is None:
        return Phase.PENDING
    if last.outcome == "Suspended" and context.run.spec.suspend:
        return status.phase or Phase.RUNNING
    return Phase.RECOVERING


def _merged(
    context: ReconcileContext, status: RunStatus, found: Iterable[NewCondition]
) -> list[Condition]:
    """The former conditions with what was found; a time changes only when its status does."""
    conditions = {known.type: known for known in status.conditions}
    for one in found:
        former = conditions.get(one.type)
        same = former is not None and former.status == one.status
        conditions[one.type] = Condition(
            type=one.type,
            status=one.status,
            reason=one.reason.value,
            message=short(one.message),
            last_transition_time=former.last_transition_time
            if former is not None and same
            else written(context.now),
            observed_generation=context.run.metadata.generation,
        )
    order = list(ConditionType)
    return sorted(conditions.values(), key=lambda known: order.index(known.type))


def _former(status: RunStatus, type_: ConditionType) -> Condition | None:
    return next((known for known in status.conditions if known.type is type_), None)
