"""Attempts: which one runs, how one ends, when the next may begin.

Crash safety comes from the order. An end is first written to status, then its RayJob is deleted,
then the next attempt waits until nothing of the former is left. A RayJob is created before the
status tells of it; a RayJob that the status does not know yet is therefore taken for what it is:
the attempt that was just begun.
"""

from datetime import timedelta
from typing import Any, Literal, NamedTuple

from .. import rendering
from ..api.contract import Failure, Progress, RunState
from ..api.status import Attempt, LossReason, RunResult
from ..rendering import names
from . import failures, goodput, pods, progress
from .draft import Draft
from .model import Apply, Delete, EnsureToken, Manifest
from .moments import parsed, seconds_since, written
from .scene import Scene

MOST_ATTEMPTS = 20
"""Attempts kept in status."""

AVOID_S = 600.0
"""How long the next attempt keeps off a node that was lost: its Node object may look well for
most of a minute, and a replacement there would wait for a kubelet that is gone."""

INFRASTRUCTURE_REASONS = frozenset(
    {
        "SubmissionFailed",
        "PreRunningDeadlineExceeded",
        "JobDeploymentStatusTransitionGracePeriodExceeded",
        "JobStatusCheckTimeoutExceeded",
    }
)
"""KubeRay's reasons that say nothing about the training code: it did not reach the cluster."""


class End(NamedTuple):
    """How an attempt ended."""

    outcome: Literal["Succeeded", "Failed", "Lost", "Suspended"]
    reason: LossReason | None
    message: str
    over: failures.Over | None = None
    """Set where no further attempt can help."""


def running(draft: Draft) -> Attempt | None:
    """The attempt that is going on."""
    last = draft.status.attempts[-1] if draft.status.attempts else None
    return last if last and last.outcome == "Running" else None


def adopt(scene: Scene, draft: Draft) -> None:
    """Take in a RayJob that was created just before the operator could say so."""
    newest = max(scene.own_jobs(), default=0)
    if newest > draft.status.attempt:
        born = pods.created(scene.own_jobs()[newest]) or scene.now
        _enter(scene, draft, newest, written(born))


def begin(scene: Scene, draft: Draft) -> None:
    """Create the next attempt's RayJob, what it needs first."""
    # Whatever is still there proves that its number was used, even if the status does not know.
    number = max(draft.status.attempt, scene.newest_number()) + 1
    run = scene.run
    avoid = tuple(
        sorted(
            node
            for node, time in draft.ledger.lost_nodes.items()
            if seconds_since(time, scene.now) < AVOID_S
        )
    )
    draft.do(
        EnsureToken(rendering.token_secret(run)),
        *(Apply(manifest) for manifest in rendering.support(run, scene.render)),
        Apply(rendering.attempt(run, number, scene.render, avoid)),
    )
    _enter(scene, draft, number, written(scene.now))
    draft.note(lost_nodes={node: draft.ledger.lost_nodes[node] for node in avoid})
    draft.look_within(scene.settings.poll_s)


def update(draft: Draft, attempt: Attempt) -> None:
    """Replace the attempt in the status."""
    draft.set(
        attempts=[attempt if a.number == attempt.number else a for a in draft.status.attempts]
    )


def ended(scene: Scene, draft: Draft, attempt: Attempt) -> End | None:
    """How the attempt ended; None: it goes on, or its driver's last word is still awaited."""
    word = scene.word(attempt.number)
    if word is not None and word.state.final and word.epoch >= draft.ledger.driver_epoch:
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
    return _by_ray_job(scene, draft, attempt, job) or _by_silence(scene, attempt, job)


def finish(scene: Scene, draft: Draft, attempt: Attempt, end: End) -> None:
    """Write how the attempt ended, and what follows for the run."""
    closed = attempt.model_copy(
        update={
            "outcome": end.outcome,
            "reason": end.reason,
            "message": end.message,
            "end_time": written(scene.now),
        }
    )
    update(draft, closed)
    over = end.over
    if end.reason in (LossReason.APPLICATION_ERROR, LossReason.STORAGE_ERROR) or (
        end.outcome == "Lost" and not draft.ledger.charges
    ):
        _count(draft, end)
    if end.outcome in ("Failed", "Lost"):
        draft.tell("Warning", f"Attempt{end.outcome}", f"Attempt {attempt.number}: {end.message}")
        settings = scene.run.spec.failures
        over = (
            over
            or failures.exhausted(draft.status, draft.ledger, settings)
            or failures.without_progress(draft.ledger, settings)
        )
        wait = failures.backoff(closed, draft.ledger.fruitless, settings.backoff)
        if wait > timedelta(0) and over is None:
            draft.set(next_attempt_time=written(scene.now + wait))
    elif end.outcome == "Suspended":
        # The user's wish is no fruitless attempt.
        draft.note(fruitless=max(draft.ledger.fruitless - 1, 0))
    own = failures.application_failures(draft.status)
    draft.set(restarts=min(own, scene.run.spec.failures.max_restarts))
    draft.note(charges={}, head=None, end_seen=None, suspend_asked=None)
    if end.outcome == "Succeeded" or over is not None:
        _complete(scene, draft, attempt.number, over)
    draft.look_within(0)


def clear_away(scene: Scene, draft: Draft) -> bool:
    """Delete what attempts have left; True once all of it is gone."""
    for _, job in sorted(scene.own_jobs().items()):
        if not pods.leaving(job):
            draft.do(Delete(scene.job_ref(job)))
    left = scene.own_jobs() or scene.clusters() or scene.pods()
    if left:
        draft.look_within(scene.settings.poll_s)
    return not left


def backoff_left_s(scene: Scene, draft: Draft) -> float:
    """Seconds until the next attempt may begin."""
    until = draft.status.next_attempt_time
    return max((parsed(until) - scene.now).total_seconds(), 0.0) if until else 0.0


def _enter(scene: Scene, draft: Draft, number: int, start: str) -> None:
    attempt = Attempt(
        number=number,
        ray_job=names.ray_job_name(scene.run, number),
        capacity=scene.run.spec.workers.capacity.type,
        start_time=start,
    )
    draft.set(
        attempt=number,
        attempts=[*draft.status.attempts, attempt][-MOST_ATTEMPTS:],
        next_attempt_time=None,
    )
    draft.note(
        charges={},
        head=None,
        end_seen=None,
        suspend_asked=None,
        fruitless=draft.ledger.fruitless + 1,
    )
    draft.tell("Normal", "AttemptStarted", f"Attempt {number} is RayJob {attempt.ray_job}")


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
    if scene.run.spec.suspend and draft.ledger.suspend_asked:
        return End("Suspended", LossReason.SUSPENDED, "Suspended; the last word was not heard")
    if reason in INFRASTRUCTURE_REASONS:
        return End("Lost", LossReason.INFRASTRUCTURE_ERROR, words)
    causes = [known.reason for known in draft.ledger.charges.values()]
    if LossReason.OUT_OF_MEMORY in causes:
        return End("Failed", LossReason.OUT_OF_MEMORY, f"Out of memory: {words}")
    if LossReason.NODE_LOST in causes or LossReason.HEAD_LOST in causes:
        lost = LossReason.NODE_LOST if LossReason.NODE_LOST in causes else LossReason.HEAD_LOST
        return End("Lost", lost, words)
    return End("Failed", LossReason.APPLICATION_ERROR, words)


def _by_silence(scene: Scene, attempt: Attempt, job: Manifest) -> End | None:
    """A driver that says nothing although every pod runs: KubeRay would wait for ever."""
    deadline = scene.settings.startup_deadline_s
    found = scene.pods(attempt.number)
    wanted = scene.run.spec.workers.count + 1
    if len(found) < wanted or not all(pods.running(pod) for pod in found):
        return None
    began = max(pods.created(pod) or scene.now for pod in found)
    spoke = scene.word(attempt.number) is not None
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


def _count(draft: Draft, end: End) -> None:
    if end.reason is LossReason.APPLICATION_ERROR:
        counts = draft.status.disruptions
        draft.set(
            disruptions=counts.model_copy(
                update={"application_errors": counts.application_errors + 1}
            )
        )
    else:
        draft.note(other_losses=draft.ledger.other_losses + 1)


def _complete(scene: Scene, draft: Draft, number: int, over: failures.Over | None) -> None:
    draft.set(completion_time=written(scene.now))
    goodput.settle(draft, scene.now)
    if over is not None:
        draft.over = over
        draft.tell("Warning", "Failed", over.message)
        return
    word = scene.word(number)
    told = word.result if word else None
    known = draft.status.checkpoint
    draft.set(
        result=RunResult(
            metrics=progress.metrics(told.metrics if told else word.metrics if word else {}),
            checkpoint_uri=(told.checkpoint_uri if told else None) or (known and known.uri),
            best_checkpoint_uri=told.best_checkpoint_uri if told else None,
        )
    )
    draft.tell("Normal", "Succeeded", "The training is done")
