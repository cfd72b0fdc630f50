"""Attempts: which one runs, what its end brings about, when the next may begin.

Crash safety comes from the order. An end is first written to status, then its RayJob is deleted,
then the next attempt waits until nothing of the former is left. A RayJob is created before the
status tells of it; a RayJob that the status does not know yet is therefore taken for what it is:
the attempt that was just begun.
"""

from datetime import timedelta

from .. import rendering
from ..api.status import Attempt, LossReason, RunResult
from ..rendering import names
from . import exclusions, failures, goodput, pods, progress
from .draft import Draft
from .endings import End
from .ledger import OF_ONE_ATTEMPT
from .losses import out_of_memory_lately
from .model import Apply, Delete, EnsureToken
from .moments import parsed, written
from .scene import Scene
from .texts import ATTEMPT_MESSAGE, URI, short

MOST_ATTEMPTS = 20
"""Attempts kept in status."""


def running(draft: Draft) -> Attempt | None:
    """The attempt that is going on."""
    last = draft.status.attempts[-1] if draft.status.attempts else None
    return last if last and last.outcome == "Running" else None


def adopt(scene: Scene, draft: Draft) -> None:
    """Take in a RayJob that was created just before the operator could say so."""
    # Pods count too: someone may have deleted the RayJob meanwhile, and its number was used.
    newest = scene.newest_number()
    if newest > draft.status.attempt:
        job = scene.job(newest)
        born = (pods.created(job) if job else None) or scene.now
        _enter(scene, draft, newest, written(born))


def begin(scene: Scene, draft: Draft) -> None:
    """Create the next attempt's RayJob, what it needs first."""
    number = draft.status.attempt + 1
    run = scene.run
    exclusions.lift(scene, draft)
    avoid = exclusions.hostnames(draft)
    draft.do(
        EnsureToken(rendering.token_secret(run, scene.render.token_key)),
        *(Apply(manifest) for manifest in rendering.support(run, scene.render)),
        Apply(rendering.attempt(run, number, scene.render, avoid)),
    )
    _enter(scene, draft, number, written(scene.now))
    draft.look_within(scene.settings.poll_s)


def update(draft: Draft, attempt: Attempt) -> None:
    """Replace the attempt in the status."""
    draft.set(
        attempts=[attempt if a.number == attempt.number else a for a in draft.status.attempts]
    )


def finish(scene: Scene, draft: Draft, attempt: Attempt, end: End) -> None:
    """Write how the attempt ended, and what follows for the run."""
    if end.reason is LossReason.APPLICATION_ERROR and out_of_memory_lately(
        draft.ledger.charges.values(), scene.now
    ):
        # The exception is what a peer without memory left behind: one failure, counted already.
        end = end._replace(reason=LossReason.OUT_OF_MEMORY)
    closed = attempt.model_copy(
        update={
            "outcome": end.outcome,
            "reason": end.reason,
            "message": short(end.message, ATTEMPT_MESSAGE),
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
        charged = {*draft.charged, *failures.budgets(end.reason)}
        over = (
            over
            or failures.exhausted(draft.status, draft.ledger, settings, charged)
            or failures.without_progress(closed, draft.ledger, settings)
        )
        wait = failures.backoff(closed, draft.ledger.fruitless, settings.backoff)
        if wait > timedelta(0) and over is None:
            draft.set(next_attempt_time=written(scene.now + wait))
    elif end.outcome == "Suspended":
        # The user's wish is no fruitless attempt.
        draft.note(fruitless=max(draft.ledger.fruitless - 1, 0))
    own = failures.application_failures(draft.status)
    draft.set(restarts=min(own, scene.run.spec.failures.max_restarts))
    draft.note(**OF_ONE_ATTEMPT)
    if end.outcome == "Succeeded" or over is not None:
        _complete(scene, draft, attempt.number, over)
    draft.look_within(0)


def clear_away(scene: Scene, draft: Draft) -> bool:
    """Delete what attempts have left; True once all of it is gone."""
    for _, job in sorted(scene.own_jobs().items()):
        if not pods.leaving(job):
            draft.do(Delete(scene.job_ref(job)))
    left = scene.own_jobs() or scene.clusters() or scene.pods()
    if left or not scene.can_be_empty:
        draft.look_within(scene.settings.poll_s)
        return False
    return True


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
        **OF_ONE_ATTEMPT,
        workers=scene.run.spec.workers.count,
        fruitless=draft.ledger.fruitless + 1,
    )
    draft.tell("Normal", "AttemptStarted", f"Attempt {number} is RayJob {attempt.ray_job}")


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
            checkpoint_uri=_uri(told.checkpoint_uri if told else None) or (known and known.uri),
            best_checkpoint_uri=_uri(told.best_checkpoint_uri if told else None),
        )
    )
    draft.tell("Normal", "Succeeded", "The training is done")


def _uri(told: str | None) -> str | None:
    return told[:URI] if told else None
