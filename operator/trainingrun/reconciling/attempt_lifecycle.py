"""Attempts: which one runs, what its end brings about, when the next may begin.

Crash safety comes from the order. An end is first written to status, then its RayJob is deleted,
then the next attempt waits until nothing of the former is left. A RayJob is created before the
status tells of it; a RayJob that the status does not know yet is therefore
the attempt that was just begun.
"""

from datetime import timedelta

from .. import rendering
from ..api.reasons import EventReason
from ..api.status import Attempt, LossReason, RunResult, RunStatus
from ..rendering import names
from . import goodput, node_exclusions, pod_status, progress_status, retry_policy
from .bookkeeping import OF_ONE_ATTEMPT
from .context import ReconcileContext
from .findings import AttemptEnd, Findings, RunFailure
from .losses import out_of_memory_lately
from .model import Apply, Delete, EnsureToken
from .plan_builder import PlanBuilder
from .texts import ATTEMPT_MESSAGE, URI, short
from .timestamps import parsed, written

MOST_ATTEMPTS = 20
"""Attempts kept in status."""


def running(status: RunStatus) -> Attempt | None:
    """The attempt that is going on."""
    last = status.attempts[-1] if status.attempts else None
    return last if last and last.outcome == "Running" else None


def adopt(context: ReconcileContext, builder: PlanBuilder) -> None:
    """Record a RayJob that was created just before the operator could write so."""
    # Pods count too: someone may have deleted the RayJob meanwhile, and its number was used.
    newest = context.newest_number()
    if newest > builder.status.attempt:
        job = context.job(newest)
        created_at = (pod_status.created(job) if job else None) or context.now
        _enter(context, builder, newest, written(created_at))


def begin(context: ReconcileContext, builder: PlanBuilder) -> None:
    """Create the next attempt's RayJob, what it needs first."""
    number = builder.status.attempt + 1
    run = context.run
    builder.add(node_exclusions.lift(context, builder.status, builder.bookkeeping))
    excluded = node_exclusions.hostnames(builder.bookkeeping)
    builder.add_action(
        EnsureToken(rendering.token_secret(run, context.render.token_key)),
        *(Apply(manifest) for manifest in rendering.support_objects(run, context.render)),
        Apply(rendering.attempt(run, number, context.render, excluded)),
    )
    _enter(context, builder, number, written(context.now))
    builder.requeue_within(context.settings.poll_s)


def _update(builder: PlanBuilder, attempt: Attempt) -> None:
    """Replace the attempt in the status."""
    builder.update_status(
        attempts=[attempt if a.number == attempt.number else a for a in builder.status.attempts]
    )


def finish(
    context: ReconcileContext, builder: PlanBuilder, attempt: Attempt, end: AttemptEnd
) -> None:
    """Write how the attempt ended, and what follows for the run."""
    if end.reason is LossReason.APPLICATION_ERROR and out_of_memory_lately(
        builder.bookkeeping.counted.values(), context.now
    ):
        # The exception is what a peer without memory left behind: one failure, counted already.
        end = end._replace(reason=LossReason.OUT_OF_MEMORY)
    closed = attempt.model_copy(
        update={
            "outcome": end.outcome,
            "reason": end.reason,
            "message": short(end.message, ATTEMPT_MESSAGE),
            "end_time": written(context.now),
        }
    )
    _update(builder, closed)
    run_failure = end.run_failure
    if end.reason in (LossReason.APPLICATION_ERROR, LossReason.STORAGE_ERROR) or (
        end.outcome == "Lost" and not builder.bookkeeping.counted
    ):
        _count(builder, end)
    if end.outcome in ("Failed", "Lost"):
        builder.add_event(
            "Warning",
            EventReason.ATTEMPT_FAILED if end.outcome == "Failed" else EventReason.ATTEMPT_LOST,
            f"Attempt {attempt.number}: {end.message}",
        )
        settings = context.run.spec.failures
        charged = {*builder.charged, *retry_policy.budgets(end.reason)}
        run_failure = (
            run_failure
            or retry_policy.exhausted(builder.status, builder.bookkeeping, settings, charged)
            or retry_policy.without_progress(closed, builder.bookkeeping, settings)
        )
        wait = retry_policy.backoff(
            closed.reason, builder.bookkeeping.attempts_without_progress, settings.backoff
        )
        if wait > timedelta(0) and run_failure is None:
            builder.update_status(next_attempt_time=written(context.now + wait))
    elif end.outcome == "Suspended":
        # A suspended attempt is not one without progress.
        builder.update_bookkeeping(
            attempts_without_progress=max(builder.bookkeeping.attempts_without_progress - 1, 0)
        )
    own = retry_policy.application_failures(builder.status)
    builder.update_status(restarts=min(own, context.run.spec.failures.max_restarts))
    builder.update_bookkeeping(**OF_ONE_ATTEMPT)
    if end.outcome == "Succeeded" or run_failure is not None:
        _complete(context, builder, attempt.number, run_failure)
    builder.requeue_within(0)


def nothing_left(context: ReconcileContext) -> bool:
    """Whether every object of every attempt is known to be gone."""
    left = context.own_jobs() or context.clusters() or context.pods()
    return not left and context.can_be_empty


def clean_up(context: ReconcileContext) -> Findings:
    """Delete the RayJobs of ended attempts, until all of them and their pods are gone."""
    jobs = [job for _, job in sorted(context.own_jobs().items()) if not pod_status.terminating(job)]
    return Findings(
        actions=tuple(Delete(context.job_ref(job)) for job in jobs),
        requeue_within_s=None if nothing_left(context) else context.settings.poll_s,
    )


def backoff_left_s(context: ReconcileContext, status: RunStatus) -> float:
    """Seconds until the next attempt may begin."""
    until = status.next_attempt_time
    return max((parsed(until) - context.now).total_seconds(), 0.0) if until else 0.0


def _enter(context: ReconcileContext, builder: PlanBuilder, number: int, start: str) -> None:
    attempt = Attempt(
        number=number,
        ray_job=names.ray_job_name(context.run, number),
        capacity=context.run.spec.workers.capacity.type,
        start_time=start,
    )
    builder.update_status(
        attempt=number,
        attempts=[*builder.status.attempts, attempt][-MOST_ATTEMPTS:],
        next_attempt_time=None,
    )
    builder.update_bookkeeping(
        **OF_ONE_ATTEMPT,
        workers=context.run.spec.workers.count,
        attempts_without_progress=builder.bookkeeping.attempts_without_progress + 1,
    )
    builder.add_event(
        "Normal", EventReason.ATTEMPT_STARTED, f"Attempt {number} is RayJob {attempt.ray_job}"
    )


def _count(builder: PlanBuilder, end: AttemptEnd) -> None:
    if end.reason is LossReason.APPLICATION_ERROR:
        counts = builder.status.disruptions
        builder.update_status(
            disruptions=counts.model_copy(
                update={"application_errors": counts.application_errors + 1}
            )
        )
    else:
        builder.update_bookkeeping(other_losses=builder.bookkeeping.other_losses + 1)


def _complete(
    context: ReconcileContext,
    builder: PlanBuilder,
    number: int,
    run_failure: RunFailure | None,
) -> None:
    builder.update_status(completion_time=written(context.now))
    builder.add(goodput.settle(builder.status, builder.bookkeeping, context.now))
    if run_failure is not None:
        builder.run_failure = run_failure
        builder.add_event("Warning", EventReason.FAILED, run_failure.message)
        return
    progress = context.progress(number)
    reported = progress.result if progress else None
    known = builder.status.checkpoint
    builder.update_status(
        result=RunResult(
            metrics=progress_status.metrics(
                reported.metrics if reported else progress.metrics if progress else {}
            ),
            checkpoint_uri=_uri(reported.checkpoint_uri if reported else None)
            or (known and known.uri),
            best_checkpoint_uri=_uri(reported.best_checkpoint_uri if reported else None),
        )
    )
    builder.add_event("Normal", EventReason.SUCCEEDED, "The training is done")


def _uri(reported: str | None) -> str | None:
    return reported[:URI] if reported else None
