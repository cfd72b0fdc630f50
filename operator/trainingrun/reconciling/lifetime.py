"""The run's own clock: acceptance, the deadline, the end and what comes after it."""

from ..api.reasons import ConditionReason, EventReason
from ..api.status import RunStatus
from ..api.v1alpha1 import API_VERSION, KIND
from . import attempt_lifecycle, diagnosis, disruptions, goodput, stuck
from .context import ReconcileContext
from .diagnosis import Blocker
from .endings import AttemptEnd
from .failures import RunFailure
from .model import Delete, Ref
from .plan_builder import PlanBuilder
from .timestamps import seconds_since, written


def start(context: ReconcileContext, builder: PlanBuilder) -> None:
    """Accepted: the clock starts."""
    if builder.status.start_time is None:
        builder.update_status(start_time=written(context.now))


def has_ended(status: RunStatus) -> bool:
    """Whether the run has ended; it stays ended."""
    return status.completion_time is not None


def deadline(context: ReconcileContext, builder: PlanBuilder) -> RunFailure | None:
    """Whether activeDeadlineSeconds have passed; if not, look again when they will have."""
    limit = context.run.spec.active_deadline_seconds
    start_time = builder.status.start_time
    if limit is None or start_time is None or builder.bookkeeping.suspended_since is not None:
        return None
    left = limit - (seconds_since(start_time, context.now) - builder.status.suspended_seconds)
    if left > 0:
        builder.requeue_within(left)
        return None
    return RunFailure(
        ConditionReason.DEADLINE_EXCEEDED,
        f"The run was active for longer than activeDeadlineSeconds, which is {limit}",
    )


def deadline_end(context: ReconcileContext, builder: PlanBuilder) -> AttemptEnd | None:
    """The deadline as the end of the running attempt."""
    passed = deadline(context, builder)
    return AttemptEnd("Failed", None, passed.message, passed) if passed else None


def fail(context: ReconcileContext, builder: PlanBuilder, cause: RunFailure) -> None:
    """End the run between two attempts."""
    builder.update_status(completion_time=written(context.now), next_attempt_time=None)
    builder.run_failure = cause
    goodput.settle(builder, context.now)
    builder.add_event("Warning", EventReason.FAILED, cause.message)
    builder.requeue_within(0)


def after_the_end(context: ReconcileContext, builder: PlanBuilder) -> Blocker | None:
    """Clear away what is left, and at last the run itself; what keeps machines that are left.

    This comes only after the end was written: deleting first and crashing would leave a run that
    begins a new attempt. It is looked at until everything is gone: one failed delete would keep
    machines busy for nothing.
    """
    gone = attempt_lifecycle.clean_up(context, builder)
    disruptions.free_stuck_pods(context, builder)
    blocker = None if gone else diagnosis.of_access(context) or stuck.of_leftovers(context, builder)
    ttl = context.run.spec.ttl_seconds_after_finished
    ended = builder.status.completion_time
    if ttl is None or ended is None or context.unknown(KIND):
        return blocker
    left = ttl - seconds_since(ended, context.now)
    if left > 0:
        builder.requeue_within(left)
    elif gone:
        meta = context.run.metadata
        builder.add_action(Delete(Ref(API_VERSION, KIND, meta.namespace, meta.name, meta.uid)))
    return blocker
