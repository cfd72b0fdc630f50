"""How an attempt ends, by the first of these that speaks: the driver's own last word, somebody who
deleted its RayJob, a budget, KubeRay, and at last a silence that lasts too long.
"""

import re
from typing import Any, Literal, NamedTuple

from ..api.contract import LEASE_LOST_EXIT_CODE, SUSPEND_EXIT_CODE, Failure, Progress, RunState
from ..api.status import Attempt, LossReason
from . import failures, pods
from .draft import Draft
from .model import Manifest
from .moments import seconds_since, written
from .scene import Scene

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


class End(NamedTuple):
    """How an attempt ended."""

    outcome: Literal["Succeeded", "Failed", "Lost", "Suspended"]
    reason: LossReason | None
    message: str
    over: failures.Over | None = None
    """Set where no further attempt can help."""


def ended(scene: Scene, draft: Draft, attempt: Attempt) -> End | None:
    """How the attempt ended; None: it goes on, or its driver's last word is still awaited."""
    word = scene.word(attempt.number)
    # Epoch 0 is a driver that ended before it held the lease: done already, or no storage.
    if word is not None and word.state.final and word.epoch in (0, draft.ledger.epoch):
        return _by_word(word)
    if scene.observed.kuberay == "missing":
        return None  # without the CRD no RayJob is seen: that is not a loss
    job = scene.job(attempt.number)
    if job is None or pods.leaving(job):
        return End(
            "Lost",
            LossReason.INFRASTRUCTURE_ERROR,
            f"RayJob {attempt.ray_job} was deleted by someone else",
        )
    over = failures.exhausted(draft.status, draft.ledger, scene.run.spec.failures)
    if over:
        return _out_of_budget(draft, over)
    return (
        _by_ray_job(scene, draft, attempt, job)
        or _by_false_starts(scene, draft, attempt)
        or _by_silence(scene, attempt, job)
    )


def _by_word(word: Progress) -> End:
    if word.state is RunState.SUCCEEDED:
        return End("Succeeded", None, "The training is done")
    if word.state is RunState.SUSPENDED:
        return End("Suspended", LossReason.SUSPENDED, f"Suspended after step {word.step}")
    return _by_failure(word.failure or Failure(kind="Application", message="no reason was given"))


def _by_failure(failure: Failure) -> End:
    if failure.kind == "Application":
        return End("Failed", LossReason.APPLICATION_ERROR, failure.message)
    reason = (
        LossReason.STORAGE_ERROR if failure.kind == "Storage" else LossReason.INFRASTRUCTURE_ERROR
    )
    return End("Lost", reason, failure.message)


def _by_ray_job(scene: Scene, draft: Draft, attempt: Attempt, job: Manifest) -> End | None:
    status: dict[str, Any] = job.get("status") or {}
    deployment, result = status.get("jobDeploymentStatus"), status.get("jobStatus")
    told = str(status.get("message") or "").strip()
    if deployment == "ValidationFailed":
        message = f"KubeRay refuses RayJob {attempt.ray_job}: {told}"
        return End("Failed", None, message, failures.Over("Rejected", message))
    if result not in ("SUCCEEDED", "FAILED", "STOPPED") and deployment != "Failed":
        draft.note(end_seen=None)
        return None
    if not _last_word_is_in(scene, draft, attempt):
        return None
    if result == "SUCCEEDED":
        return End("Succeeded", None, "The training is done; its last word was not heard")
    return _unexplained(scene, draft, attempt, str(status.get("reason") or ""), told)


def _last_word_is_in(scene: Scene, draft: Draft, attempt: Attempt) -> bool:
    """Whether nothing more is to be learned from the driver, whose RayJob has ended."""
    if draft.ledger.end_seen is None:
        draft.note(end_seen=written(scene.now))
    waited = seconds_since(draft.ledger.end_seen or written(scene.now), scene.now)
    head = scene.head(attempt.number)
    if head is None or not pods.running(head):
        return True
    age = scene.observed.progress_age_s
    # A document fetched well after the end is the last one, whatever it says.
    heard_after = scene.word(attempt.number) is not None and age is not None and age + 1 < waited
    return heard_after or waited >= scene.settings.last_word_s


def _unexplained(scene: Scene, draft: Draft, attempt: Attempt, reason: str, told: str) -> End:
    """The RayJob failed and the driver could not say why."""
    words = told or f"RayJob {attempt.ray_job} failed"
    exit_code = _EXIT_CODE.search(told)
    code = int(exit_code.group(1)) if exit_code else None
    if code == SUSPEND_EXIT_CODE or (scene.run.spec.suspend and draft.ledger.suspend_asked):
        return End("Suspended", LossReason.SUSPENDED, "Suspended; the last word was not heard")
    if code == LEASE_LOST_EXIT_CODE or reason in INFRASTRUCTURE_REASONS:
        return End("Lost", LossReason.INFRASTRUCTURE_ERROR, words)
    causes = [known.reason for known in draft.ledger.charges.values()]
    if LossReason.OUT_OF_MEMORY in causes:
        return End("Failed", LossReason.OUT_OF_MEMORY, f"Out of memory: {words}")
    if LossReason.NODE_LOST in causes or LossReason.HEAD_LOST in causes:
        lost = LossReason.NODE_LOST if LossReason.NODE_LOST in causes else LossReason.HEAD_LOST
        return End("Lost", lost, words)
    return End("Failed", LossReason.APPLICATION_ERROR, words)


def _by_false_starts(scene: Scene, draft: Draft, attempt: Attempt) -> End | None:
    """Pods that end by themselves before any training: KubeRay would replace them for ever."""
    if attempt.resumed_from_step is not None:
        return None
    # Only those that were seen to end: a head that is taken away with notice leaves no words.
    charges = [
        known for known in draft.ledger.charges.values() if known.words and not known.collateral
    ]
    heads = [known for known in charges if known.reason is LossReason.HEAD_LOST]
    workers = [known for known in charges if known.reason is LossReason.WORKER_LOST]
    if len(heads) >= FALSE_STARTS:
        where, fallen = "head", heads
    elif len(workers) >= FALSE_STARTS * scene.run.spec.workers.count:
        where, fallen = "workers", workers
    else:
        return None
    return End(
        "Lost",
        LossReason.INFRASTRUCTURE_ERROR,
        f"{len(fallen)} pods of spec.{where} ended before the training began, the last one with "
        f"{fallen[-1].words}; correct spec.image or spec.{where}.podTemplate if that is the cause",
    )


def _by_silence(scene: Scene, attempt: Attempt, job: Manifest) -> End | None:
    """A driver that says nothing although every pod runs: KubeRay would wait for ever."""
    deadline = scene.settings.startup_deadline_s
    found = scene.pods(attempt.number)
    wanted = scene.run.spec.workers.count + 1
    if len(found) < wanted or not all(pods.running(pod) for pod in found):
        return None
    began = max(pods.created(pod) or scene.now for pod in found)
    spoke = scene.live_word(attempt.number) is not None
    silent_s = (
        scene.observed.progress_failing_s or 0.0 if spoke else (scene.now - began).total_seconds()
    )
    if silent_s < deadline:
        return None
    return End(
        "Lost",
        LossReason.INFRASTRUCTURE_ERROR,
        f"Every pod runs, but the driver said nothing for {round(deadline)} s; its log is in the "
        "head pod",
    )


def _out_of_budget(draft: Draft, over: failures.Over) -> End:
    causes = [known.reason for known in draft.ledger.charges.values()]
    if over.reason == "RestartsExhausted":
        return End("Failed", LossReason.OUT_OF_MEMORY, over.message, over)
    return End("Lost", causes[-1] if causes else None, over.message, over)
