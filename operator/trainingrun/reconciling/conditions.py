"""The conditions, and the one word that sums them up.

Each policy leaves its facts in the status and the ledger; only here do they become words.
"""

from typing import Literal

from ..api.contract import Progress
from ..api.status import Attempt, Condition, ConditionType, Phase
from . import attempts, lifetime, pods, progress, silence
from .diagnosis import Trouble
from .draft import Draft
from .failures import Over
from .moments import written
from .scene import Scene
from .texts import short

Truth = Literal["True", "False", "Unknown"]

ALIVE = (Phase.STARTING, Phase.RUNNING, Phase.RECOVERING)
"""Phases of an attempt that has its pods."""


def stall_after_the_end(scene: Scene, draft: Draft, trouble: Trouble | None) -> None:
    """What keeps an ended run's machines; nothing else in its status changes any more."""
    former = _former(draft, ConditionType.STALLED)
    if trouble:
        _set(scene, draft, ConditionType.STALLED, "True", trouble.reason, trouble.message)
    elif former is not None and former.status == "True":
        _set(scene, draft, ConditionType.STALLED, "False", "NothingIsMissing")


def settle(scene: Scene, draft: Draft, trouble: Trouble | None, refused: Trouble | None) -> None:
    """Write all conditions and the phase, from what the policies found."""
    run_over = lifetime.over(draft.status)
    attempt = attempts.running(draft)
    word = scene.live_word(attempt.number) if attempt else None
    if refused:
        _set(scene, draft, ConditionType.ACCEPTED, "False", refused.reason, refused.message)
    else:
        _set(scene, draft, ConditionType.ACCEPTED, "True", "Valid", "The spec can be used")
    kept = attempt is not None and _unheard(scene, draft, attempt)
    if not kept:
        _ready(scene, draft, word)
    _suspended(scene, draft)
    if trouble and not run_over:
        _set(scene, draft, ConditionType.STALLED, "True", trouble.reason, trouble.message)
    else:
        _set(scene, draft, ConditionType.STALLED, "False", "NothingIsMissing")
    _ended(scene, draft, draft.over)
    draft.set(
        phase=scene.run.status.phase if kept else _phase(scene, draft, attempt, word),
        observed_generation=scene.run.metadata.generation,
    )


def _unheard(scene: Scene, draft: Draft, attempt: Attempt) -> bool:
    """Whether this process has not heard the driver yet, and nothing speaks against what was last
    written: an operator that starts anew does not make a run that trains look as if it began.
    """
    former = scene.run.status
    if former.attempt != attempt.number or former.phase is None or lifetime.over(draft.status):
        return False
    if scene.word(attempt.number) is not None:
        return False
    if not scene.can_be_empty:
        return former.phase in (*ALIVE, Phase.QUEUED)
    head, job = scene.head(attempt.number), scene.job(attempt.number)
    return (
        former.phase in ALIVE
        and head is not None
        and pods.running(head)
        and pods.uid(head) == former.seen.get("head")
        and draft.status.disruptions == former.disruptions
        and job is not None
        and silence.job_status(job) == "RUNNING"
        and silence.every_pod_runs(scene, draft, attempt)
    )


def _ready(scene: Scene, draft: Draft, word: Progress | None) -> None:
    wanted = silence.wanted_pods(scene, draft) - 1
    if word and progress.trains(word) and word.world_size >= wanted:
        _set(scene, draft, ConditionType.READY, "True", "Training", f"{wanted} workers train")
    elif lifetime.over(draft.status):
        _set(scene, draft, ConditionType.READY, "False", "Ended")
    else:
        _set(
            scene, draft, ConditionType.READY, "False", "NotTraining", _why_not_ready(scene, draft)
        )


def _why_not_ready(scene: Scene, draft: Draft) -> str:
    until = draft.status.next_attempt_time
    if attempts.running(draft) is None and until and draft.ledger.suspended_since is None:
        return f"The next attempt begins at {until}"
    return ""


def _suspended(scene: Scene, draft: Draft) -> None:
    kind = ConditionType.SUSPENDED
    if lifetime.over(draft.status):
        _set(scene, draft, kind, "False", "Ended")
    elif draft.ledger.suspended_since is not None:
        _set(scene, draft, kind, "True", "Suspended", "Every pod is gone; suspend: false goes on")
    elif scene.run.spec.suspend:
        _set(scene, draft, kind, "False", "Suspending", "A checkpoint is made and pods are freed")
    else:
        _set(scene, draft, kind, "False", "NotAsked")


def _ended(scene: Scene, draft: Draft, cause: Over | None) -> None:
    if cause is not None:
        _set(scene, draft, ConditionType.FAILED, "True", cause.reason, _why(draft, cause))
        _set(scene, draft, ConditionType.SUCCEEDED, "False", "Failed")
    elif lifetime.over(draft.status):
        _set(scene, draft, ConditionType.SUCCEEDED, "True", "Done", "The training is done")
        _set(scene, draft, ConditionType.FAILED, "False", "Succeeded")
    else:
        _set(scene, draft, ConditionType.SUCCEEDED, "False", "NotYet")
        _set(scene, draft, ConditionType.FAILED, "False", "NotYet")


def _why(draft: Draft, cause: Over) -> str:
    """The budget's sentence and what ended the last attempt, which the user wants to know most."""
    last = draft.status.attempts[-1].message if draft.status.attempts else ""
    return f"{cause.message}: {last}" if last and last != cause.message else cause.message


def _phase(scene: Scene, draft: Draft, attempt: Attempt | None, word: Progress | None) -> Phase:
    if lifetime.over(draft.status):
        return Phase.FAILED if draft.over else Phase.SUCCEEDED
    if draft.ledger.suspended_since is not None:
        return Phase.SUSPENDED
    if attempt is None:
        return _between_attempts(scene, draft)
    if scene.taken_back(attempt.number):
        return Phase.QUEUED
    if progress.trains(word):
        return Phase.RUNNING
    trained = any(known.last_step for known in draft.status.attempts)
    lost = [known for known in draft.status.attempts if known.outcome in ("Failed", "Lost")]
    return Phase.RECOVERING if trained or lost else Phase.STARTING


def _between_attempts(scene: Scene, draft: Draft) -> Phase:
    last = draft.status.attempts[-1] if draft.status.attempts else None
    if last is None:
        return Phase.PENDING
    if last.outcome == "Suspended" and scene.run.spec.suspend:
        return draft.status.phase or Phase.RUNNING
    return Phase.RECOVERING


def _set(
    scene: Scene, draft: Draft, type_: ConditionType, status: Truth, reason: str, message: str = ""
) -> None:
    """One condition; its time changes only when its status does."""
    former = _former(draft, type_)
    same = former is not None and former.status == status
    new = Condition(
        type=type_,
        status=status,
        reason=reason,
        message=short(message),
        last_transition_time=former.last_transition_time
        if former is not None and same
        else written(scene.now),
        observed_generation=scene.run.metadata.generation,
    )
    others = [known for known in draft.status.conditions if known.type is not type_]
    order = list(ConditionType)
    draft.set(conditions=sorted([*others, new], key=lambda known: order.index(known.type)))


def _former(draft: Draft, type_: ConditionType) -> Condition | None:
    return next((known for known in draft.status.conditions if known.type is type_), None)
