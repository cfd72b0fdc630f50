"""The conditions, and the phase that summarizes them.

Policies find facts; only here do they become conditions.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from trainingrun_protocol.progress import Progress, RunState

from ...api.checkpoints_spec import Checkpoints
from ...api.reasons import WAITS, ConditionReason, Truth
from ...api.status import Attempt, Condition, ConditionType, Phase, RunStatus
from ...api.v1alpha1 import TrainingRun
from .. import pod_status
from ..context import ReconcileContext, job_status, trains
from ..findings import Blocker, Findings, RunFailure, StatusDraft
from ..texts import short, written
from . import cost

ALIVE = (Phase.STARTING, Phase.RUNNING, Phase.RECOVERING)
"""Phases of an attempt that has its pods."""

_SUSPENDING = "A checkpoint is made and pods are freed"


class NewCondition(NamedTuple):
    """What one condition is to say."""

    type: ConditionType
    status: Truth
    reason: ConditionReason
    message: str = ""


def of_ended_run(
    run: TrainingRun, now: datetime, status: RunStatus, blocker: Blocker | None
) -> Findings:
    """What keeps the leftovers of an ended run; nothing else in its status changes any more, but
    the generation that it describes.
    """
    generation = run.metadata.generation
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
        conditions = [_waiting(blocker), _stalled(blocker, failure or None)]
        changes["conditions"] = _merged(run, now, status, conditions)
    return Findings(status=changes)


def of_deleted_run(
    context: ReconcileContext, draft: StatusDraft, blocker: Blocker | None
) -> Findings:
    """The phase and the conditions of a deleted run, which finalizers of others hold."""
    message = (
        "The TrainingRun is deleted and its pods are freed; it is gone once its finalizers "
        f"({', '.join(context.run.metadata.finalizers)}) are removed"
    )
    ready = NewCondition(ConditionType.READY, "False", ConditionReason.DELETING, message)
    return Findings(
        status={
            "conditions": _merged(
                context.run,
                context.now,
                draft.status,
                [ready, _waiting(blocker), _stalled(blocker)],
            ),
            "phase": Phase.DELETING,
            "next_attempt_time": None,
            "observed_generation": context.run.metadata.generation,
        }
    )


def of_run(
    context: ReconcileContext,
    draft: StatusDraft,
    blocker: Blocker | None,
    refused: Blocker | None,
    run_failure: RunFailure | None,
) -> Findings:
    """All conditions and the phase, from what the policies found."""
    attempt = draft.status.running_attempt
    progress = context.live_progress(attempt.number) if attempt else None
    blocker = None if draft.status.has_ended else blocker
    kept = attempt is not None and _not_read_yet(context, draft, attempt)
    conditions = [
        _accepted(context, draft, refused, attempt),
        *([] if kept else [_ready(context, draft, progress, run_failure)]),
        _suspended(context, draft),
        _waiting(blocker),
        _stalled(blocker, _ending(draft.status, refused, run_failure)),
        *_ended(draft.status, run_failure),
    ]
    phase = _phase(context, draft, attempt, progress, run_failure)
    return Findings(
        status={
            "conditions": _merged(context.run, context.now, draft.status, conditions),
            "phase": context.run.status.phase if kept else phase,
            "observed_generation": context.run.metadata.generation,
        }
    )


def _accepted(
    context: ReconcileContext, draft: StatusDraft, refused: Blocker | None, attempt: Attempt | None
) -> NewCondition:
    if refused:
        return NewCondition(ConditionType.ACCEPTED, "False", refused.reason, refused.message)
    # With the defaults of fields that a former operator did not know.
    known = {**Checkpoints().to_dict(), **draft.bookkeeping.checkpoints}
    if (
        attempt
        and draft.bookkeeping.checkpoints
        and known != context.run.spec.checkpoints.to_dict()
    ):
        return NewCondition(
            ConditionType.ACCEPTED,
            "True",
            ConditionReason.FROM_NEXT_ATTEMPT,
            f"The spec can be used; attempt {attempt.number} continues with the checkpoints that "
            "it began with, and the edited ones apply from the next attempt on; suspend: true, "
            "then false, begins it",
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
        return None  # what runs continues
    return refused


def _of_failure(message: str) -> Blocker:
    return Blocker(ConditionReason.FAILED, message)


def _not_read_yet(context: ReconcileContext, draft: StatusDraft, attempt: Attempt) -> bool:
    """Whether this process has not read the driver's progress yet, and nothing contradicts the
    last status: a restarted operator does not show a run that trains as one that starts.
    """
    former = context.run.status
    if former.attempt != attempt.number or former.phase is None or draft.status.has_ended:
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
        and draft.status.disruptions == former.disruptions
        and job is not None
        and job_status(job) == "RUNNING"
        and context.enough_pods_run(draft, attempt.number)
    )


def _ready(
    context: ReconcileContext,
    draft: StatusDraft,
    progress: Progress | None,
    run_failure: RunFailure | None,
) -> NewCondition:
    """Whether the run is where its spec wants it: it trains, is suspended, or has succeeded."""
    wanted = context.wanted_workers(draft)
    enough = context.run.spec.minimum_workers if context.is_elastic else wanted
    if progress is not None and progress.trials is not None:
        # At a sweep's end fewer trials are left than could be trained at once.
        left = sum(not trial.state.final for trial in progress.trials.trials)
        enough = wanted = min(wanted, left * context.run.spec.workers.count)
    kind = ConditionType.READY
    if progress and trains(progress) and progress.world_size >= enough and not context.suspends:
        fewer = progress.world_size < wanted
        training = f"{progress.world_size} of {wanted}" if fewer else f"{wanted}"
        message = "; ".join([f"{training} workers train", *progress.warnings])
        return NewCondition(kind, "True", ConditionReason.TRAINING, message)
    if run_failure:
        return NewCondition(kind, "False", ConditionReason.FAILED)
    if draft.status.has_ended:
        return NewCondition(kind, "True", ConditionReason.SUCCEEDED)
    if context.suspends and draft.bookkeeping.suspended_since is not None:
        return NewCondition(kind, "True", ConditionReason.SUSPENDED)
    if context.suspends:
        return NewCondition(kind, "False", ConditionReason.NOT_TRAINING, _SUSPENDING)
    until = draft.status.next_attempt_time
    waits = draft.status.running_attempt is None and draft.bookkeeping.suspended_since is None
    message = f"The next attempt begins at {until}" if waits and until else ""
    return NewCondition(
        kind, "False", ConditionReason.NOT_TRAINING, message or _start(context, draft, progress)
    )


def _start(context: ReconcileContext, draft: StatusDraft, progress: Progress | None) -> str:
    """What the start waits for: pods, of which one may pull its image, or else what the driver
    does; "": no attempt runs, or it has no pods yet.
    """
    if draft.status.running_attempt is None:
        return ""
    number = draft.status.attempts[-1].number
    index, head = context.index(number), context.head(number)
    ready = len(index.ready_workers) + (head is not None and pod_status.ready(head))
    asked = context.asked_pods(draft, number)
    if not index.all:
        return ""
    message = f"{ready} of {asked} pods are ready"
    if ready >= asked and progress is None:
        return f"{message}; the driver starts"
    if progress is not None and ready >= asked:
        starts = progress.state in (RunState.STARTING, RunState.RECOVERING)
        logs = f"trainingrun logs {context.run.metadata.name} prints what it does"
        return f"{message}; the worker group starts; {logs}" if starts else ""
    for pod in index.unwell:
        if since := pod_status.pulls_since(pod):
            return f"{message}; pod {pod_status.name(pod)} pulls its image since {written(since)}"
    return message


def _suspended(context: ReconcileContext, draft: StatusDraft) -> NewCondition:
    kind = ConditionType.SUSPENDED
    if draft.status.has_ended:
        return NewCondition(kind, "False", ConditionReason.ENDED)
    if draft.bookkeeping.suspended_since is not None:
        by_budget = context.suspends and not context.run.spec.suspend
        reason = ConditionReason.BUDGET_SPENT if by_budget else ConditionReason.SUSPENDED
        message = f"Every pod is gone; {cost.how_to_continue(context)}"
        return NewCondition(kind, "True", reason, message)
    if context.suspends:
        message = _SUSPENDING
        if not context.run.spec.suspend:
            message += f": {cost.how_to_continue(context)}"
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
    draft: StatusDraft,
    attempt: Attempt | None,
    progress: Progress | None,
    run_failure: RunFailure | None,
) -> Phase:
    if draft.status.has_ended:
        return Phase.FAILED if run_failure else Phase.SUCCEEDED
    if draft.bookkeeping.suspended_since is not None:
        return Phase.SUSPENDED
    if attempt is None:
        return _between_attempts(context, draft)
    if context.suspended_by_queue(attempt.number):
        return Phase.QUEUED
    if trains(progress):
        return Phase.RUNNING
    trained = any(known.last_step for known in draft.status.attempts)
    lost = [known for known in draft.status.attempts if known.outcome in ("Failed", "Lost")]
    return Phase.RECOVERING if trained or lost else Phase.STARTING


def _between_attempts(context: ReconcileContext, draft: StatusDraft) -> Phase:
    last = draft.status.last_attempt
    if last is None:
        return Phase.PENDING
    if last.outcome == "Suspended" and context.suspends:
        return draft.status.phase or Phase.RUNNING
    return Phase.RECOVERING


def _merged(
    run: TrainingRun, now: datetime, status: RunStatus, new: Iterable[NewCondition]
) -> list[Condition]:
    """The former conditions with what was found; a time changes only when its status does."""
    conditions = {known.type: known for known in status.conditions}
    for one in new:
        former = conditions.get(one.type)
        same = former is not None and former.status == one.status
        conditions[one.type] = Condition(
            type=one.type,
            status=one.status,
            reason=one.reason.value,
            message=short(one.message),
            last_transition_time=former.last_transition_time
            if former is not None and same
            else written(now),
            observed_generation=run.metadata.generation,
        )
    order = list(ConditionType)
    return sorted(conditions.values(), key=lambda known: order.index(known.type))


def _former(status: RunStatus, type_: ConditionType) -> Condition | None:
    return next((known for known in status.conditions if known.type is type_), None)
