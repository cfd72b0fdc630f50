"""The conditions, and the phase that summarizes them.

Policies find facts; only here do they become conditions.
"""

from ..api.contract import Progress
from ..api.reasons import ConditionReason, Truth
from ..api.status import Attempt, Condition, ConditionType, Phase
from . import attempt_lifecycle, lifetime, pod_status, progress_status, silence
from .context import ReconcileContext
from .findings import Blocker, RunFailure
from .plan_builder import PlanBuilder
from .texts import short
from .timestamps import written

ALIVE = (Phase.STARTING, Phase.RUNNING, Phase.RECOVERING)
"""Phases of an attempt that has its pods."""


def settle_after_the_end(
    context: ReconcileContext, builder: PlanBuilder, blocker: Blocker | None
) -> None:
    """Condition Stalled of an ended run; nothing else in its status changes any more."""
    former = _former(builder, ConditionType.STALLED)
    if blocker:
        _set(context, builder, ConditionType.STALLED, "True", blocker.reason, blocker.message)
    elif former is not None and former.status == "True":
        _set(context, builder, ConditionType.STALLED, "False", ConditionReason.NOTHING_IS_MISSING)


def settle(
    context: ReconcileContext,
    builder: PlanBuilder,
    blocker: Blocker | None,
    refused: Blocker | None,
) -> None:
    """Write all conditions and the phase, from what the policies found."""
    run_over = lifetime.has_ended(builder.status)
    attempt = attempt_lifecycle.running(builder.status)
    progress = context.live_progress(attempt.number) if attempt else None
    if refused:
        _set(context, builder, ConditionType.ACCEPTED, "False", refused.reason, refused.message)
    else:
        _set(
            context,
            builder,
            ConditionType.ACCEPTED,
            "True",
            ConditionReason.VALID,
            "The spec can be used",
        )
    kept = attempt is not None and _not_read_yet(context, builder, attempt)
    if not kept:
        _ready(context, builder, progress)
    _suspended(context, builder)
    if blocker and not run_over:
        _set(context, builder, ConditionType.STALLED, "True", blocker.reason, blocker.message)
    else:
        _set(context, builder, ConditionType.STALLED, "False", ConditionReason.NOTHING_IS_MISSING)
    _ended(context, builder, builder.run_failure)
    builder.update_status(
        phase=context.run.status.phase if kept else _phase(context, builder, attempt, progress),
        observed_generation=context.run.metadata.generation,
    )


def _not_read_yet(context: ReconcileContext, builder: PlanBuilder, attempt: Attempt) -> bool:
    """Whether this process has not read the driver's progress yet, and nothing contradicts the
    last status: a restarted operator does not show a run that trains as one that starts.
    """
    former = context.run.status
    if (
        former.attempt != attempt.number
        or former.phase is None
        or lifetime.has_ended(builder.status)
    ):
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
        and builder.status.disruptions == former.disruptions
        and job is not None
        and silence.job_status(job) == "RUNNING"
        and silence.every_pod_runs(context, builder.bookkeeping, attempt)
    )


def _ready(context: ReconcileContext, builder: PlanBuilder, progress: Progress | None) -> None:
    wanted = silence.wanted_pods(context, builder.bookkeeping) - 1
    if progress and progress_status.trains(progress) and progress.world_size >= wanted:
        _set(
            context,
            builder,
            ConditionType.READY,
            "True",
            ConditionReason.TRAINING,
            f"{wanted} workers train",
        )
    elif lifetime.has_ended(builder.status):
        _set(context, builder, ConditionType.READY, "False", ConditionReason.ENDED)
    else:
        _set(
            context,
            builder,
            ConditionType.READY,
            "False",
            ConditionReason.NOT_TRAINING,
            _why_not_ready(context, builder),
        )


def _why_not_ready(context: ReconcileContext, builder: PlanBuilder) -> str:
    until = builder.status.next_attempt_time
    if (
        attempt_lifecycle.running(builder.status) is None
        and until
        and builder.bookkeeping.suspended_since is None
    ):
        return f"The next attempt begins at {until}"
    return ""


def _suspended(context: ReconcileContext, builder: PlanBuilder) -> None:
    kind = ConditionType.SUSPENDED
    if lifetime.has_ended(builder.status):
        _set(context, builder, kind, "False", ConditionReason.ENDED)
    elif builder.bookkeeping.suspended_since is not None:
        _set(
            context,
            builder,
            kind,
            "True",
            ConditionReason.SUSPENDED,
            "Every pod is gone; suspend: false goes on",
        )
    elif context.run.spec.suspend:
        _set(
            context,
            builder,
            kind,
            "False",
            ConditionReason.SUSPENDING,
            "A checkpoint is made and pods are freed",
        )
    else:
        _set(context, builder, kind, "False", ConditionReason.NOT_ASKED)


def _ended(context: ReconcileContext, builder: PlanBuilder, cause: RunFailure | None) -> None:
    if cause is not None:
        _set(context, builder, ConditionType.FAILED, "True", cause.reason, _why(builder, cause))
        _set(context, builder, ConditionType.SUCCEEDED, "False", ConditionReason.FAILED)
    elif lifetime.has_ended(builder.status):
        _set(
            context,
            builder,
            ConditionType.SUCCEEDED,
            "True",
            ConditionReason.DONE,
            "The training is done",
        )
        _set(context, builder, ConditionType.FAILED, "False", ConditionReason.SUCCEEDED)
    else:
        _set(context, builder, ConditionType.SUCCEEDED, "False", ConditionReason.NOT_YET)
        _set(context, builder, ConditionType.FAILED, "False", ConditionReason.NOT_YET)


def _why(builder: PlanBuilder, cause: RunFailure) -> str:
    """The budget's sentence and what ended the last attempt, which the user wants to know most."""
    last = builder.status.attempts[-1].message if builder.status.attempts else ""
    return f"{cause.message}: {last}" if last and last != cause.message else cause.message


def _phase(
    context: ReconcileContext,
    builder: PlanBuilder,
    attempt: Attempt | None,
    progress: Progress | None,
) -> Phase:
    if lifetime.has_ended(builder.status):
        return Phase.FAILED if builder.run_failure else Phase.SUCCEEDED
    if builder.bookkeeping.suspended_since is not None:
        return Phase.SUSPENDED
    if attempt is None:
        return _between_attempts(context, builder)
    if context.suspended_by_queue(attempt.number):
        return Phase.QUEUED
    if progress_status.trains(progress):
        return Phase.RUNNING
    trained = any(known.last_step for known in builder.status.attempts)
    lost = [known for known in builder.status.attempts if known.outcome in ("Failed", "Lost")]
    return Phase.RECOVERING if trained or lost else Phase.STARTING


def _between_attempts(context: ReconcileContext, builder: PlanBuilder) -> Phase:
    last = builder.status.attempts[-1] if builder.status.attempts else None
    if last is None:
        return Phase.PENDING
    if last.outcome == "Suspended" and context.run.spec.suspend:
        return builder.status.phase or Phase.RUNNING
    return Phase.RECOVERING


def _set(
    context: ReconcileContext,
    builder: PlanBuilder,
    type_: ConditionType,
    status: Truth,
    reason: ConditionReason,
    message: str = "",
) -> None:
    """One condition; its time changes only when its status does."""
    former = _former(builder, type_)
    same = former is not None and former.status == status
    new = Condition(
        type=type_,
        status=status,
        reason=reason.value,
        message=short(message),
        last_transition_time=former.last_transition_time
        if former is not None and same
        else written(context.now),
        observed_generation=context.run.metadata.generation,
    )
    others = [known for known in builder.status.conditions if known.type is not type_]
    order = list(ConditionType)
    builder.update_status(
        conditions=sorted([*others, new], key=lambda known: order.index(known.type))
    )


def _former(builder: PlanBuilder, type_: ConditionType) -> Condition | None:
    return next((known for known in builder.status.conditions if known.type is type_), None)
