"""One look at one run -> what to do, what to write, when to look again. Pure.

Read `plan` as the table of contents; each policy has a file of its own.
"""

from datetime import datetime

from ..api.status import Attempt
from ..rendering.settings import RenderSettings
from . import (
    attempts,
    conditions,
    diagnosis,
    disruptions,
    endings,
    evidence,
    failures,
    goodput,
    lifetime,
    progress,
    suspension,
)
from .diagnosis import Trouble
from .draft import Draft
from .model import Observed, Plan
from .scene import Scene
from .settings import ReconcileSettings


def plan(
    observed: Observed, render: RenderSettings, settings: ReconcileSettings, now: datetime
) -> Plan:
    """Decide what follows from one look at a run.

    The same observation gives the same plan, and nothing in the status changes with the clock
    alone but what a deadline or a wait that has passed brings about.
    """
    scene = Scene(observed, render, settings, now)
    draft = Draft.of(observed.run.status)
    if observed.run.metadata.deletion_timestamp:
        return Plan((), observed.run.status)  # owner references collect what it owns
    if lifetime.over(draft.status):
        lifetime.after_the_end(scene, draft)
        disruptions.free_stuck_pods(scene, draft)
        return draft.plan()
    if observed.invalid:
        conditions.refuse(scene, draft, Trouble("InvalidSpec", observed.invalid))
        return draft.plan()
    lifetime.start(scene, draft)
    attempts.adopt(scene, draft)
    attempt = attempts.running(draft)
    if attempt:
        trouble, refused = _accompany(scene, draft, attempt), None
    else:
        trouble, refused = _between(scene, draft)
    conditions.settle(scene, draft, trouble, refused)
    return draft.plan()


def _accompany(scene: Scene, draft: Draft, attempt: Attempt) -> Trouble | None:
    """An attempt runs: count, see whether it has ended, help it along."""
    suspension.resume(scene, draft)  # an attempt that was adopted after a crash ended the rest too
    draft.look_within(scene.settings.poll_s)
    goodput.hear(scene, draft, attempt.number)
    attempt = progress.take_in(scene, draft, attempt)
    attempts.update(draft, attempt)
    evidence.take_in(scene, draft, attempt.number)
    end = (
        endings.ended(scene, draft, attempt)
        or lifetime.deadline_end(scene, draft)
        or suspension.ask(scene, draft, attempt)
    )
    if end:
        # Only written now; acted on at the next look, once it cannot be forgotten any more.
        draft.actions.clear()
        attempts.finish(scene, draft, attempt, end)
        return None
    disruptions.respond(scene, draft, attempt.number)
    return diagnosis.of_kuberay(scene) or diagnosis.of_pods(scene, draft, attempt)


def _between(scene: Scene, draft: Draft) -> tuple[Trouble | None, Trouble | None]:
    """No attempt runs: clear away, then rest, wait or begin. What stalls it, what refuses it."""
    passed = lifetime.deadline(scene, draft)
    if passed:
        lifetime.fail(scene, draft, passed)
        return None, None
    if not attempts.clear_away(scene, draft):
        disruptions.free_stuck_pods(scene, draft)
        return None, None
    if scene.run.spec.suspend:
        suspension.rest(scene, draft)
        return None, None
    suspension.resume(scene, draft)
    over = failures.exhausted(draft.status, draft.ledger, scene.run.spec.failures)
    if over:
        lifetime.fail(scene, draft, over)
        return None, None
    stranger = scene.stranger(draft.status.attempt + 1)
    if stranger is not None:
        draft.look_within(scene.settings.poll_s)
        return Trouble(
            "NameTaken",
            f"RayJob {stranger['metadata']['name']} belongs to another owner, such as a deleted "
            "run of the same name; the run begins once it is gone",
        ), None
    missing = diagnosis.of_kuberay(scene)
    if missing:
        draft.look_within(scene.settings.kuberay_retry_s)
        return missing, None
    if scene.observed.rejected:
        return _rejected(scene, draft, scene.observed.rejected)
    wait = attempts.backoff_left_s(scene, draft)
    if wait > 0:
        draft.look_within(wait)
        return None, None
    attempts.begin(scene, draft)
    return None, None


def _rejected(scene: Scene, draft: Draft, words: str) -> tuple[Trouble | None, Trouble | None]:
    """The API server refused the RayJob; a quota may have room later, a bad spec has not."""
    draft.look_within(scene.settings.kuberay_retry_s)
    if "exceeded quota" in words:
        message = f"The namespace's quota refuses the RayJob: {words}; raise it or ask less"
        return Trouble("QuotaExceeded", message), None
    return None, Trouble("Rejected", f"The API server refuses the RayJob: {words}")
