"""One observation of one run -> what to do, what to write, when to reconcile again. Pure.

Read `plan` as the table of contents; each policy has a file of its own.
"""

from datetime import datetime

from ..api.reasons import ConditionReason
from ..api.status import Attempt
from ..api.v1alpha1 import KIND
from ..rendering.render_settings import RenderSettings
from . import (
    attempt_lifecycle,
    conditions,
    diagnosis,
    endings,
    evidence,
    goodput,
    lifetime,
    node_exclusions,
    node_loss,
    progress_status,
    requeue,
    retry_policy,
    silence,
    stuck,
    suspension,
)
from .context import ReconcileContext
from .findings import AttemptEnd, Blocker, RunFailure
from .model import (
    Action,
    Apply,
    Delete,
    EnsureToken,
    ExcludeNodes,
    Observed,
    Plan,
    Rejection,
)
from .plan_builder import PlanBuilder
from .reconcile_settings import ReconcileSettings
from .texts import short


def plan(
    observed: Observed, render: RenderSettings, settings: ReconcileSettings, now: datetime
) -> Plan:
    """Decide what follows from one observation of a run.

    The same observation gives the same plan, and nothing in the status changes with the clock
    alone but what a deadline or a wait that has passed brings about.
    """
    context = ReconcileContext(observed, render, settings, now)
    builder = PlanBuilder.of(observed.run.status)
    if observed.run.metadata.deletion_timestamp:
        return Plan((), observed.run.status)  # owner references collect what it owns
    if lifetime.has_ended(builder.status):
        blocker = _after_the_end(context, builder)
        builder.add(conditions.settle_after_the_end(context, builder.status, blocker))
        return builder.plan()
    # A spec that cannot be used begins nothing; what runs continues as it was rendered.
    refused = Blocker(ConditionReason.INVALID_SPEC, observed.invalid) if observed.invalid else None
    if not refused:
        builder.add(lifetime.start(context, builder.status))
    attempt_lifecycle.adopt(context, builder)
    attempt = attempt_lifecycle.running(builder.status)
    if attempt:
        blocker = _during_an_attempt(context, builder, attempt)
    else:
        blocker, not_accepted = _between_attempts(context, builder)
        refused = refused or not_accepted
    builder.add(
        conditions.settle(
            context, builder.status, builder.bookkeeping, blocker, refused, builder.run_failure
        )
    )
    return builder.plan()


def _during_an_attempt(
    context: ReconcileContext, builder: PlanBuilder, attempt: Attempt
) -> Blocker | None:
    """An attempt runs: record what it reports and loses, end it, or respond to its losses."""
    number = attempt.number
    # An attempt that was adopted after a crash has ended the suspended time too.
    builder.add(suspension.resume(context, builder.status, builder.bookkeeping))
    builder.add(goodput.record_seconds(context, builder.status, builder.bookkeeping, number))
    builder.add(
        progress_status.record_progress(context, builder.status, builder.bookkeeping, attempt)
    )
    attempt = builder.status.attempts[-1]
    builder.add(evidence.record_losses(context, builder.status, builder.bookkeeping, number))
    builder.add(node_exclusions.lift(context, builder.status, builder.bookkeeping, number))
    lost = node_loss.lost_nodes(context, number)
    if lost:
        signs = {name: node.signs for name, node in lost.items()}
        builder.add(
            evidence.record_lost_nodes(context, builder.status, builder.bookkeeping, number, signs)
        )
    end = _end(context, builder, attempt)
    if end:
        # Only written now; the next reconcile acts on it, once it cannot be forgotten any more.
        builder.actions.clear()
        attempt_lifecycle.finish(context, builder, attempt, end)
        return None
    # The exclusion first: a replacement on the dead node, which stays Ready for most of a minute,
    # would wait without end.
    builder.add(node_exclusions.exclude_nodes(context, builder.status, builder.bookkeeping, number))
    builder.add(node_loss.replace_pods(lost))
    builder.add(
        node_loss.replace_workers_of_lost_head(context, builder.status, builder.bookkeeping, number)
    )
    builder.requeue_within(requeue.after_s(context, builder.bookkeeping, attempt))
    blocker = (
        diagnosis.of_access(context)
        or diagnosis.of_kuberay(context)
        or diagnosis.of_pods(context, attempt)
        or diagnosis.of_storage(context.live_progress(number))
        or silence.blocker(context, attempt)
        or endings.given_up(builder.bookkeeping, attempt)
    )
    if blocker is None:
        stopped = stuck.of_attempt(context, builder.bookkeeping, attempt)
        builder.add(stopped)
        blocker = stopped.blocker
    return _hold_back(context, builder) or blocker


def _end(context: ReconcileContext, builder: PlanBuilder, attempt: Attempt) -> AttemptEnd | None:
    """How the attempt ends: by itself, by the deadline or by a suspension."""
    ended = endings.ended(context, builder.status, builder.bookkeeping, builder.charged, attempt)
    builder.add(ended)
    if ended.end:
        return ended.end
    passed = _deadline(context, builder)
    if passed:
        return AttemptEnd("Failed", None, passed.message, passed)
    suspended = suspension.ask(context, builder.bookkeeping, attempt)
    builder.add(suspended)
    return suspended.end


def _deadline(context: ReconcileContext, builder: PlanBuilder) -> RunFailure | None:
    """The failure by activeDeadlineSeconds; before that, reconcile again when they have passed."""
    left = lifetime.seconds_left(context, builder.status, builder.bookkeeping)
    if left is not None and left > 0:
        builder.requeue_within(left)
    return lifetime.deadline_exceeded(context) if left is not None and left <= 0 else None


def _after_the_end(context: ReconcileContext, builder: PlanBuilder) -> Blocker | None:
    """Delete what is left, and at last the run itself; what keeps objects that are left.

    This comes only after the end was written: deleting first and crashing would leave a run that
    begins a new attempt. It is repeated until everything is gone.
    """
    gone = attempt_lifecycle.nothing_left(context)
    blocker = _clean_up(context, builder)
    builder.add(lifetime.delete_after_ttl(context, builder.status, gone))
    return _hold_back(context, builder) or blocker


def _clean_up(context: ReconcileContext, builder: PlanBuilder) -> Blocker | None:
    """Delete what ended attempts have left; what keeps it."""
    builder.add(attempt_lifecycle.clean_up(context))
    builder.add(node_loss.free_stuck_pods(context))
    if attempt_lifecycle.nothing_left(context):
        return None
    blocker = diagnosis.of_access(context)
    if blocker is None:
        leftovers = stuck.of_leftovers(context, builder.status)
        builder.add(leftovers)
        blocker = leftovers.blocker
    return blocker


def _hold_back(context: ReconcileContext, builder: PlanBuilder) -> Blocker | None:
    """Leave out what the API server has just refused, or the status would not be written."""
    refused = context.observed.rejected
    if refused is None:
        return None
    at = (refused.kind, refused.name)
    rest = [action for action in builder.actions if _object(action) != at]
    if attempt_lifecycle.running(builder.status) is None and len(rest) == len(builder.actions):
        return None  # it was of the attempt that has ended
    builder.actions = rest
    builder.requeue_within(context.settings.kuberay_retry_s)
    told = _rejected(context, builder, refused)
    return told[0] or told[1]


def _object(action: Action) -> tuple[str, str] | None:
    """Kind and name of the object that an action writes."""
    match action:
        case Apply(manifest) | EnsureToken(manifest):
            return manifest["kind"], manifest["metadata"]["name"]
        case Delete(ref) | ExcludeNodes(ref):
            return ref.kind, ref.name
    return None


def _between_attempts(
    context: ReconcileContext, builder: PlanBuilder
) -> tuple[Blocker | None, Blocker | None]:
    """No attempt runs: clean up, then rest, wait or begin. What stalls it, what refuses it."""
    passed = _deadline(context, builder)
    if passed:
        _fail(context, builder, passed)
        return None, None
    if not attempt_lifecycle.nothing_left(context):
        blocker = _clean_up(context, builder)
        return _hold_back(context, builder) or blocker, None
    lost = diagnosis.of_access(context)
    misplaced = diagnosis.of_namespace(context)
    if misplaced:
        return lost, misplaced
    if context.run.spec.suspend:
        builder.add(suspension.rest(context, builder.bookkeeping))
        return lost, None
    if context.observed.invalid or context.unknown(KIND):
        return lost, None
    builder.add(suspension.resume(context, builder.status, builder.bookkeeping))
    last = builder.status.attempts[-1] if builder.status.attempts else None
    charged = retry_policy.budgets(last.reason if last else None)
    run_failure = retry_policy.exhausted(
        builder.status, builder.bookkeeping, context.run.spec.failures, charged
    )
    if run_failure:
        _fail(context, builder, run_failure)
        return None, None
    foreign = context.foreign_ray_job(builder.status.attempt + 1)
    if foreign is not None:
        builder.requeue_within(context.settings.poll_s)
        return Blocker(
            ConditionReason.NAME_TAKEN,
            f"RayJob {foreign['metadata']['name']} belongs to another owner, such as a deleted "
            "run of the same name; the run begins once it is gone",
        ), None
    missing = diagnosis.of_kuberay(context)
    if missing:
        builder.requeue_within(context.settings.kuberay_retry_s)
        return missing, None
    if context.observed.rejected:
        return _rejected(context, builder, context.observed.rejected)
    wait = attempt_lifecycle.backoff_left_s(context, builder.status)
    if wait > 0:
        builder.requeue_within(wait)
        return lost, None
    attempt_lifecycle.begin(context, builder)
    return lost, None


def _fail(context: ReconcileContext, builder: PlanBuilder, cause: RunFailure) -> None:
    """End the run between two attempts."""
    builder.run_failure = cause
    builder.add(lifetime.fail(context, builder.status, builder.bookkeeping, cause))


def _rejected(
    context: ReconcileContext, builder: PlanBuilder, rejected: Rejection
) -> tuple[Blocker | None, Blocker | None]:
    """The API server refused an object; a quota may have room later, a bad spec has not."""
    builder.requeue_within(context.settings.kuberay_retry_s)
    what, message = f"the {rejected.kind} {rejected.name}", short(rejected.message, 500)
    if quota := diagnosis.quota_exceeded(what, message):
        return quota, None
    return None, Blocker(ConditionReason.REJECTED, f"The API server refuses {what}: {message}")
