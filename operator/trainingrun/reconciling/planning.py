"""One look at one run -> what to do, what to write, when to look again. Pure.

Read `plan` as the table of contents; each policy has a file of its own.
"""

from datetime import datetime

from ..api.status import Attempt
from ..api.v1alpha1 import KIND
from ..rendering.settings import RenderSettings
from . import (
    attempts,
    conditions,
    diagnosis,
    disruptions,
    endings,
    evidence,
    exclusions,
    failures,
    goodput,
    lifetime,
    progress,
    requeue,
    silence,
    stuck,
    suspension,
)
from .diagnosis import Trouble
from .draft import Draft
from .model import (
    Action,
    Apply,
    AvoidNodes,
    Delete,
    EnsureToken,
    Observed,
    Plan,
    Rejection,
)
from .scene import Scene
from .settings import ReconcileSettings
from .texts import short


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
        stuck_by = lifetime.after_the_end(scene, draft)
        stuck_by = _hold_back(scene, draft) or stuck_by
        conditions.stall_after_the_end(scene, draft, stuck_by)
        return draft.plan()
    # A spec that cannot be used begins nothing; what runs is accompanied as it was rendered.
    refused = Trouble("InvalidSpec", observed.invalid) if observed.invalid else None
    if not refused:
        lifetime.start(scene, draft)
    attempts.adopt(scene, draft)
    attempt = attempts.running(draft)
    if attempt:
        trouble = _accompany(scene, draft, attempt)
    else:
        trouble, not_taken = _between(scene, draft)
        refused = refused or not_taken
    conditions.settle(scene, draft, trouble, refused)
    return draft.plan()


def _accompany(scene: Scene, draft: Draft, attempt: Attempt) -> Trouble | None:
    """An attempt runs: count, see whether it has ended, help it along."""
    suspension.resume(scene, draft)  # an attempt that was adopted after a crash ended the rest too
    goodput.hear(scene, draft, attempt.number)
    attempt = progress.take_in(scene, draft, attempt)
    attempts.update(draft, attempt)
    evidence.take_in(scene, draft, attempt.number)
    exclusions.lift(scene, draft, attempt.number)
    lost = disruptions.lost_nodes(scene, draft, attempt.number)
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
    disruptions.respond(scene, draft, attempt.number, lost)
    draft.look_within(requeue.after_s(scene, draft, attempt.number))
    trouble = (
        diagnosis.of_access(scene)
        or diagnosis.of_kuberay(scene)
        or diagnosis.of_pods(scene, draft, attempt)
        or diagnosis.of_storage(scene.live_word(attempt.number))
        or silence.trouble(scene, draft, attempt)
        or endings.given_up(draft, attempt)
        or stuck.of_attempt(scene, draft, attempt)
    )
    return _hold_back(scene, draft) or trouble


def _hold_back(scene: Scene, draft: Draft) -> Trouble | None:
    """Leave out what the API server has just refused, or the status would not be written."""
    refused = scene.observed.rejected
    if refused is None:
        return None
    at = (refused.kind, refused.name)
    rest = [action for action in draft.actions if _object(action) != at]
    if attempts.running(draft) is None and len(rest) == len(draft.actions):
        return None  # it was of the attempt that has ended
    draft.actions = rest
    draft.look_within(scene.settings.kuberay_retry_s)
    told = _rejected(scene, draft, refused)
    return told[0] or told[1]


def _object(action: Action) -> tuple[str, str] | None:
    """Kind and name of the object that an action writes."""
    match action:
        case Apply(manifest) | EnsureToken(manifest):
            return manifest["kind"], manifest["metadata"]["name"]
        case Delete(ref) | AvoidNodes(ref):
            return ref.kind, ref.name
    return None


def _between(scene: Scene, draft: Draft) -> tuple[Trouble | None, Trouble | None]:
    """No attempt runs: clear away, then rest, wait or begin. What stalls it, what refuses it."""
    passed = lifetime.deadline(scene, draft)
    if passed:
        lifetime.fail(scene, draft, passed)
        return None, None
    lost = diagnosis.of_access(scene)
    if not attempts.clear_away(scene, draft):
        disruptions.free_stuck_pods(scene, draft)
        trouble = lost or stuck.of_leftovers(scene, draft)
        return _hold_back(scene, draft) or trouble, None
    misplaced = diagnosis.of_namespace(scene)
    if misplaced:
        return lost, misplaced
    if scene.run.spec.suspend:
        suspension.rest(scene, draft)
        return lost, None
    if scene.observed.invalid or scene.unknown(KIND):
        return lost, None
    suspension.resume(scene, draft)
    last = draft.status.attempts[-1] if draft.status.attempts else None
    charged = failures.budgets(last.reason if last else None)
    over = failures.exhausted(draft.status, draft.ledger, scene.run.spec.failures, charged)
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
        return lost, None
    attempts.begin(scene, draft)
    return lost, None


def _rejected(
    scene: Scene, draft: Draft, rejected: Rejection
) -> tuple[Trouble | None, Trouble | None]:
    """The API server refused an object; a quota may have room later, a bad spec has not."""
    draft.look_within(scene.settings.kuberay_retry_s)
    kind, words = f"{rejected.kind} {rejected.name}", short(rejected.message, 500)
    if "exceeded quota" in words:
        message = f"The namespace's quota refuses the {kind}: {words}; raise it or ask less"
        return Trouble("QuotaExceeded", message), None
    return None, Trouble("Rejected", f"The API server refuses the {kind}: {words}")
