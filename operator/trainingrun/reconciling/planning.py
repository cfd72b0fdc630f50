"""One look at one run -> what to do, what to write, when to look again. Pure.

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
    disruptions,
    endings,
    evidence,
    exclusions,
    failures,
    goodput,
    lifetime,
    progress_status,
    requeue,
    silence,
    stuck,
    suspension,
)
from .context import ReconcileContext
from .diagnosis import Blocker
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
    """Decide what follows from one look at a run.

    The same observation gives the same plan, and nothing in the status changes with the clock
    alone but what a deadline or a wait that has passed brings about.
    """
    context = ReconcileContext(observed, render, settings, now)
    builder = PlanBuilder.of(observed.run.status)
    if observed.run.metadata.deletion_timestamp:
        return Plan((), observed.run.status)  # owner references collect what it owns
    if lifetime.has_ended(builder.status):
        blocker = lifetime.after_the_end(context, builder)
        blocker = _hold_back(context, builder) or blocker
        conditions.settle_after_the_end(context, builder, blocker)
        return builder.plan()
    # A spec that cannot be used begins nothing; what runs is accompanied as it was rendered.
    refused = Blocker(ConditionReason.INVALID_SPEC, observed.invalid) if observed.invalid else None
    if not refused:
        lifetime.start(context, builder)
    attempt_lifecycle.adopt(context, builder)
    attempt = attempt_lifecycle.running(builder)
    if attempt:
        blocker = _accompany(context, builder, attempt)
    else:
        blocker, not_taken = _between(context, builder)
        refused = refused or not_taken
    conditions.settle(context, builder, blocker, refused)
    return builder.plan()


def _accompany(context: ReconcileContext, builder: PlanBuilder, attempt: Attempt) -> Blocker | None:
    """An attempt runs: count, see whether it has ended, help it along."""
    suspension.resume(
        context, builder
    )  # an attempt that was adopted after a crash ended the rest too
    goodput.record_seconds(context, builder, attempt.number)
    attempt = progress_status.record_progress(context, builder, attempt)
    attempt_lifecycle.update(builder, attempt)
    evidence.record_losses(context, builder, attempt.number)
    exclusions.lift(context, builder, attempt.number)
    lost = disruptions.lost_nodes(context, builder, attempt.number)
    end = (
        endings.ended(context, builder, attempt)
        or lifetime.deadline_end(context, builder)
        or suspension.ask(context, builder, attempt)
    )
    if end:
        # Only written now; acted on at the next look, once it cannot be forgotten any more.
        builder.actions.clear()
        attempt_lifecycle.finish(context, builder, attempt, end)
        return None
    disruptions.respond(context, builder, attempt.number, lost)
    builder.requeue_within(requeue.after_s(context, builder, attempt.number))
    blocker = (
        diagnosis.of_access(context)
        or diagnosis.of_kuberay(context)
        or diagnosis.of_pods(context, builder, attempt)
        or diagnosis.of_storage(context.live_progress(attempt.number))
        or silence.blocker(context, builder, attempt)
        or endings.given_up(builder, attempt)
        or stuck.of_attempt(context, builder, attempt)
    )
    return _hold_back(context, builder) or blocker


def _hold_back(context: ReconcileContext, builder: PlanBuilder) -> Blocker | None:
    """Leave out what the API server has just refused, or the status would not be written."""
    refused = context.observed.rejected
    if refused is None:
        return None
    at = (refused.kind, refused.name)
    rest = [action for action in builder.actions if _object(action) != at]
    if attempt_lifecycle.running(builder) is None and len(rest) == len(builder.actions):
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


def _between(
    context: ReconcileContext, builder: PlanBuilder
) -> tuple[Blocker | None, Blocker | None]:
    """No attempt runs: clear away, then rest, wait or begin. What stalls it, what refuses it."""
    passed = lifetime.deadline(context, builder)
    if passed:
        lifetime.fail(context, builder, passed)
        return None, None
    lost = diagnosis.of_access(context)
    if not attempt_lifecycle.clean_up(context, builder):
        disruptions.free_stuck_pods(context, builder)
        blocker = lost or stuck.of_leftovers(context, builder)
        return _hold_back(context, builder) or blocker, None
    misplaced = diagnosis.of_namespace(context)
    if misplaced:
        return lost, misplaced
    if context.run.spec.suspend:
        suspension.rest(context, builder)
        return lost, None
    if context.observed.invalid or context.unknown(KIND):
        return lost, None
    suspension.resume(context, builder)
    last = builder.status.attempts[-1] if builder.status.attempts else None
    charged = failures.budgets(last.reason if last else None)
    run_failure = failures.exhausted(
        builder.status, builder.bookkeeping, context.run.spec.failures, charged
    )
    if run_failure:
        lifetime.fail(context, builder, run_failure)
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
    wait = attempt_lifecycle.backoff_left_s(context, builder)
    if wait > 0:
        builder.requeue_within(wait)
        return lost, None
    attempt_lifecycle.begin(context, builder)
    return lost, None


def _rejected(
    context: ReconcileContext, builder: PlanBuilder, rejected: Rejection
) -> tuple[Blocker | None, Blocker | None]:
    """The API server refused an object; a quota may have room later, a bad spec has not."""
    builder.requeue_within(context.settings.kuberay_retry_s)
    kind, message = f"{rejected.kind} {rejected.name}", short(rejected.message, 500)
    if "exceeded quota" in message:
        message = f"The namespace's quota refuses the {kind}: {message}; raise it or ask less"
        return Blocker(ConditionReason.QUOTA_EXCEEDED, message), None
    return None, Blocker(ConditionReason.REJECTED, f"The API server refuses the {kind}: {message}")
