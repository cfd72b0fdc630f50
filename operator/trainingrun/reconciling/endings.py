"""How an attempt ends, by the first of these that speaks: the driver's own last word, somebody who
deleted its RayJob, a budget, KubeRay, and at last a driver that was never submitted.
"""

import re
from typing import Any, Literal, NamedTuple

from ..api.contract import LEASE_LOST_EXIT_CODE, SUSPEND_EXIT_CODE, Failure, Progress, RunState
from ..api.reasons import ConditionReason
from ..api.status import Attempt, LossReason
from . import failures, pod_status, silence
from .bookkeeping import CountedDisruption
from .context import ReconcileContext
from .diagnosis import Blocker
from .losses import is_false_start
from .model import AskToSuspend, Object
from .plan_builder import PlanBuilder
from .timestamps import seconds_since, written

INFRASTRUCTURE_REASONS = frozenset(
    {
        "SubmissionFailed",
        "PreRunningDeadlineExceeded",
        "JobDeploymentStatusTransitionGracePeriodExceeded",
        "JobStatusCheckTimeoutExceeded",
    }
)
"""KubeRay's reasons that say nothing about the training code: it did not reach the cluster."""

FALSE_STARTS = 3
"""Pods in the same place that end before any training, after which the attempt is given up."""

_EXIT_CODE = re.compile(r"exit code (\d+)")
"""In RayJob's status.message: KubeRay hands the driver's exit code on nowhere else."""


class AttemptEnd(NamedTuple):
    """How an attempt ended."""

    outcome: Literal["Succeeded", "Failed", "Lost", "Suspended"]
    reason: LossReason | None
    message: str
    run_failure: failures.RunFailure | None = None
    """Set where no further attempt can help."""


def ended(context: ReconcileContext, builder: PlanBuilder, attempt: Attempt) -> AttemptEnd | None:
    """How the attempt ended; None: it goes on, or its driver's last word is still awaited."""
    progress = context.progress(attempt.number)
    # Epoch 0 is a driver that ended before it held the lease: done already, or no storage.
    final = progress is not None and progress.state.final
    if (
        final
        and progress is not None
        and (progress.epoch == 0 or progress.epoch >= builder.bookkeeping.epoch)
    ):
        return _by_final_progress(context, builder, progress)
    if context.deleted(attempt.number):
        return AttemptEnd(
            "Lost",
            LossReason.INFRASTRUCTURE_ERROR,
            f"RayJob {attempt.ray_job} was deleted by someone else",
        )
    job = context.job(attempt.number)
    if job is None:
        return None  # unknown at the moment: that is not a loss
    run_failure = failures.exhausted(
        builder.status, builder.bookkeeping, context.run.spec.failures, builder.charged
    )
    if run_failure:
        return _out_of_budget(builder, run_failure)
    return (
        _by_ray_job(context, builder, attempt, job)
        or _by_false_starts(context, builder, attempt)
        or _by_silence(context, builder, attempt, job)
    )


def _by_final_progress(
    context: ReconcileContext, builder: PlanBuilder, progress: Progress
) -> AttemptEnd:
    if progress.state is RunState.SUCCEEDED:
        return AttemptEnd("Succeeded", None, "The training is done")
    if (
        progress.state is RunState.SUSPENDED
        and builder.bookkeeping.given_up
        and not context.run.spec.suspend
    ):
        return AttemptEnd(
            "Lost",
            LossReason.INFRASTRUCTURE_ERROR,
            f"KubeRay gave up on the RayJob; its driver was asked to end, at step {progress.step}",
        )
    if progress.state is RunState.SUSPENDED:
        return AttemptEnd(
            "Suspended", LossReason.SUSPENDED, f"Suspended after step {progress.step}"
        )
    return _by_failure(
        progress.failure or Failure(kind="Application", message="no reason was given")
    )


def _by_failure(failure: Failure) -> AttemptEnd:
    if failure.kind == "Application":
        return AttemptEnd("Failed", LossReason.APPLICATION_ERROR, failure.message)
    reason = (
        LossReason.STORAGE_ERROR if failure.kind == "Storage" else LossReason.INFRASTRUCTURE_ERROR
    )
    return AttemptEnd("Lost", reason, failure.message)


def _by_ray_job(
    context: ReconcileContext, builder: PlanBuilder, attempt: Attempt, job: Object
) -> AttemptEnd | None:
    status: dict[str, Any] = job.get("status") or {}
    deployment, result = status.get("jobDeploymentStatus"), status.get("jobStatus")
    told = str(status.get("message") or "").strip()
    if deployment == "ValidationFailed":
        message = f"KubeRay refuses RayJob {attempt.ray_job}: {told}"
        return AttemptEnd(
            "Failed", None, message, failures.RunFailure(ConditionReason.REJECTED, message)
        )
    if result not in ("SUCCEEDED", "FAILED", "STOPPED") and deployment != "Failed":
        builder.update_bookkeeping(end_seen=None)
        return None
    reason = str(status.get("reason") or "")
    if reason in INFRASTRUCTURE_REASONS and _hands_over(context, builder, attempt):
        return None
    if not _final_progress_is_in(context, builder, attempt):
        return None
    if result == "SUCCEEDED":
        return AttemptEnd("Succeeded", None, "The training is done; its last word was not heard")
    return _unexplained(context, builder, attempt, reason, told)


def _hands_over(context: ReconcileContext, builder: PlanBuilder, attempt: Attempt) -> bool:
    """KubeRay gave up on a driver that tells us it is well: ask it for a checkpoint, and wait.

    KubeRay's word is one sign, and its RayCluster goes some minutes later whatever we do. A
    checkpoint before that loses no step.
    """
    if builder.bookkeeping.end_seen is None:
        builder.update_bookkeeping(end_seen=written(context.now))
    if not driver_lives(context, attempt):
        return False
    since = builder.bookkeeping.given_up
    if since is None:
        since = written(context.now)
        builder.update_bookkeeping(given_up=since)
    if seconds_since(since, context.now) >= context.settings.suspend_deadline_s:
        return False
    builder.add_action(AskToSuspend(attempt.number))
    return True


def given_up(builder: PlanBuilder, attempt: Attempt) -> Blocker | None:
    """What the status says while a driver is asked to end because KubeRay gave up on it."""
    if builder.bookkeeping.given_up is None:
        return None
    return Blocker(
        ConditionReason.KUBERAY_GAVE_UP,
        f"KubeRay gave up on RayJob {attempt.ray_job}, though its driver answers: the driver is "
        "asked for a checkpoint, and the next attempt goes on from there; look whether KubeRay's "
        "operator can reach port 8265 of the head pod",
    )


def driver_lives(context: ReconcileContext, attempt: Attempt) -> bool:
    """Whether the driver answers this process's polls, and has not ended."""
    progress, age_s = context.live_progress(attempt.number), context.observed.progress_age_s
    return (
        progress is not None
        and not progress.state.final
        and context.observed.progress_failing_s is None
        and age_s is not None
        and age_s < context.settings.final_progress_s
    )


def _final_progress_is_in(
    context: ReconcileContext, builder: PlanBuilder, attempt: Attempt
) -> bool:
    """Whether nothing more is to be learned from the driver, whose RayJob has ended."""
    if builder.bookkeeping.end_seen is None:
        builder.update_bookkeeping(end_seen=written(context.now))
    waited = seconds_since(builder.bookkeeping.end_seen or written(context.now), context.now)
    head = context.head(attempt.number)
    if head is None or not pod_status.running(head):
        return True
    age = context.observed.progress_age_s
    # A document fetched well after the end is the last one, whatever it says.
    read_after = (
        context.progress(attempt.number) is not None and age is not None and age + 1 < waited
    )
    return read_after or waited >= context.settings.final_progress_s


def _unexplained(
    context: ReconcileContext, builder: PlanBuilder, attempt: Attempt, reason: str, told: str
) -> AttemptEnd:
    """The RayJob failed and the driver could not say why."""
    message = told or f"RayJob {attempt.ray_job} failed"
    exit_code = _EXIT_CODE.search(told)
    code = int(exit_code.group(1)) if exit_code else None
    if code == SUSPEND_EXIT_CODE or (
        context.run.spec.suspend and builder.bookkeeping.suspend_asked
    ):
        return AttemptEnd(
            "Suspended", LossReason.SUSPENDED, "Suspended; the last word was not heard"
        )
    if code == LEASE_LOST_EXIT_CODE or reason in INFRASTRUCTURE_REASONS:
        return AttemptEnd("Lost", LossReason.INFRASTRUCTURE_ERROR, message)
    causes = [known.reason for known in builder.bookkeeping.counted.values()]
    if LossReason.OUT_OF_MEMORY in causes:
        return AttemptEnd("Failed", LossReason.OUT_OF_MEMORY, f"Out of memory: {message}")
    if LossReason.NODE_LOST in causes or LossReason.HEAD_LOST in causes:
        lost = LossReason.NODE_LOST if LossReason.NODE_LOST in causes else LossReason.HEAD_LOST
        return AttemptEnd("Lost", lost, message)
    return AttemptEnd("Failed", LossReason.APPLICATION_ERROR, message)


def _by_false_starts(
    context: ReconcileContext, builder: PlanBuilder, attempt: Attempt
) -> AttemptEnd | None:
    """Pods that end by themselves before any training: KubeRay would replace them for ever."""
    if attempt.resumed_from_step is not None:
        return None
    bookkeeping = builder.bookkeeping
    heads = _fallen(builder, LossReason.HEAD_LOST)
    workers = _fallen(builder, LossReason.WORKER_LOST)
    if (count := len(heads) + bookkeeping.false_heads) >= FALSE_STARTS:
        where, fallen = "head", heads
    elif (count := len(workers) + bookkeeping.false_workers) >= FALSE_STARTS * (
        silence.wanted_pods(context, builder) - 1
    ):
        where, fallen = "workers", workers
    else:
        return None
    return AttemptEnd(
        "Lost",
        LossReason.INFRASTRUCTURE_ERROR,
        f"{count} pods of spec.{where} ended before the training began, the last one with "
        f"{fallen[-1].termination_message if fallen else 'no message'}; correct spec.image or "
        f"spec.{where}.podTemplate if that is the cause",
    )


def _fallen(builder: PlanBuilder, reason: LossReason) -> list[CountedDisruption]:
    return [
        known for known in builder.bookkeeping.counted.values() if is_false_start(known, reason)
    ]


def _by_silence(
    context: ReconcileContext, builder: PlanBuilder, attempt: Attempt, job: Object
) -> AttemptEnd | None:
    why = silence.never_submitted(context, builder, attempt, job)
    return AttemptEnd("Lost", LossReason.INFRASTRUCTURE_ERROR, why) if why else None


def _out_of_budget(builder: PlanBuilder, run_failure: failures.RunFailure) -> AttemptEnd:
    causes = [known.reason for known in builder.bookkeeping.counted.values()]
    if run_failure.reason == "RestartsExhausted":
        return AttemptEnd("Failed", LossReason.OUT_OF_MEMORY, run_failure.message, run_failure)
    return AttemptEnd("Lost", causes[-1] if causes else None, run_failure.message, run_failure)
