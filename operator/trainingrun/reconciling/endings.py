"""How an attempt ends, by the first of these that speaks: the driver's own last word, somebody who
deleted its RayJob, a budget, KubeRay, and at last a driver that was never submitted.
"""

import re
from typing import Any, Literal, NamedTuple

from ..api.contract import LEASE_LOST_EXIT_CODE, SUSPEND_EXIT_CODE, Failure, Progress, RunState
from ..api.status import Attempt, LossReason
from . import failures, pods, silence
from .diagnosis import Trouble
from .draft import Draft
from .ledger import Charge
from .losses import is_false_start
from .model import AskToSuspend, Manifest
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
    final = word is not None and word.state.final
    if final and word is not None and (word.epoch == 0 or word.epoch >= draft.ledger.epoch):
        return _by_word(scene, draft, word)
    if scene.deleted(attempt.number):
        return End(
            "Lost",
            LossReason.INFRASTRUCTURE_ERROR,
            f"RayJob {attempt.ray_job} was deleted by someone else",
        )
    job = scene.job(attempt.number)
    if job is None:
        return None  # unknown at the moment: that is not a loss
    over = failures.exhausted(draft.status, draft.ledger, scene.run.spec.failures, draft.charged)
    if over:
        return _out_of_budget(draft, over)
    return (
        _by_ray_job(scene, draft, attempt, job)
        or _by_false_starts(scene, draft, attempt)
        or _by_silence(scene, draft, attempt, job)
    )


def _by_word(scene: Scene, draft: Draft, word: Progress) -> End:
    if word.state is RunState.SUCCEEDED:
        return End("Succeeded", None, "The training is done")
    if word.state is RunState.SUSPENDED and draft.ledger.given_up and not scene.run.spec.suspend:
        return End(
            "Lost",
            LossReason.INFRASTRUCTURE_ERROR,
            f"KubeRay gave up on the RayJob; its driver was asked to end, at step {word.step}",
        )
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
    reason = str(status.get("reason") or "")
    if reason in INFRASTRUCTURE_REASONS and _hands_over(scene, draft, attempt):
        return None
    if not _last_word_is_in(scene, draft, attempt):
        return None
    if result == "SUCCEEDED":
        return End("Succeeded", None, "The training is done; its last word was not heard")
    return _unexplained(scene, draft, attempt, reason, told)


def _hands_over(scene: Scene, draft: Draft, attempt: Attempt) -> bool:
    """KubeRay gave up on a driver that tells us it is well: ask it for a checkpoint, and wait.

    KubeRay's word is one sign, and its RayCluster goes some minutes later whatever we do. A
    checkpoint before that loses no step.
    """
    if draft.ledger.end_seen is None:
        draft.note(end_seen=written(scene.now))
    if not driver_lives(scene, attempt):
        return False
    since = draft.ledger.given_up
    if since is None:
        since = written(scene.now)
        draft.note(given_up=since)
    if seconds_since(since, scene.now) >= scene.settings.suspend_deadline_s:
        return False
    draft.do(AskToSuspend(attempt.number))
    return True


def given_up(draft: Draft, attempt: Attempt) -> Trouble | None:
    """What the status says while a driver is asked to end because KubeRay gave up on it."""
    if draft.ledger.given_up is None:
        return None
    return Trouble(
        "KubeRayGaveUp",
        f"KubeRay gave up on RayJob {attempt.ray_job}, though its driver answers: the driver is "
        "asked for a checkpoint, and the next attempt goes on from there; look whether KubeRay's "
        "operator can reach port 8265 of the head pod",
    )


def driver_lives(scene: Scene, attempt: Attempt) -> bool:
    """Whether the driver answers this process's polls, and has not ended."""
    word, age_s = scene.live_word(attempt.number), scene.observed.progress_age_s
    return (
        word is not None
        and not word.state.final
        and scene.observed.progress_failing_s is None
        and age_s is not None
        and age_s < scene.settings.last_word_s
    )


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
    ledger = draft.ledger
    heads = _fallen(draft, LossReason.HEAD_LOST)
    workers = _fallen(draft, LossReason.WORKER_LOST)
    if (count := len(heads) + ledger.false_heads) >= FALSE_STARTS:
        where, fallen = "head", heads
    elif (count := len(workers) + ledger.false_workers) >= FALSE_STARTS * (
        silence.wanted_pods(scene, draft) - 1
    ):
        where, fallen = "workers", workers
    else:
        return None
    return End(
        "Lost",
        LossReason.INFRASTRUCTURE_ERROR,
        f"{count} pods of spec.{where} ended before the training began, the last one with "
        f"{fallen[-1].words if fallen else 'no word'}; correct spec.image or "
        f"spec.{where}.podTemplate if that is the cause",
    )


def _fallen(draft: Draft, reason: LossReason) -> list[Charge]:
    return [known for known in draft.ledger.charges.values() if is_false_start(known, reason)]


def _by_silence(scene: Scene, draft: Draft, attempt: Attempt, job: Manifest) -> End | None:
    why = silence.never_submitted(scene, draft, attempt, job)
    return End("Lost", LossReason.INFRASTRUCTURE_ERROR, why) if why else None


def _out_of_budget(draft: Draft, over: failures.Over) -> End:
    causes = [known.reason for known in draft.ledger.charges.values()]
    if over.reason == "RestartsExhausted":
        return End("Failed", LossReason.OUT_OF_MEMORY, over.message, over)
    return End("Lost", causes[-1] if causes else None, over.message, over)
