"""suspend: true checkpoints first, then frees every pod; false goes on from there.

The run counts as suspended, and its deadline stands still, only once the last pod is gone.
"""

from ..api.status import Attempt, LossReason
from . import pods
from .draft import Draft
from .endings import End
from .model import AskToSuspend
from .moments import seconds_since, written
from .scene import Scene


def ask(scene: Scene, draft: Draft, attempt: Attempt) -> End | None:
    """Ask the runtime to checkpoint and end; the end itself where there is nothing to wait for."""
    if not scene.run.spec.suspend:
        if draft.ledger.suspend_asked is not None:
            # Taken back; a driver that ends all the same is followed by the next attempt.
            draft.note(suspend_asked=None)
        return None
    head = scene.head(attempt.number)
    if head is None or not pods.running(head) or not _driver_is_up(scene, attempt):
        if scene.unknown("Pod", "RayJob"):
            return None  # a driver may be there
        # No driver has spoken, so nothing was trained that a checkpoint could keep.
        return _end("Suspended before the driver had anything to save")
    if draft.ledger.suspend_asked is None:
        draft.note(suspend_asked=written(scene.now))
        draft.tell("Normal", "Suspending", "The runtime is asked to make a checkpoint and end")
    asked = draft.ledger.suspend_asked
    late = asked is not None and (
        seconds_since(asked, scene.now) >= scene.settings.suspend_deadline_s
    )
    if late and scene.can_be_empty:
        return _end(
            "Suspended without a last checkpoint: the runtime made none within "
            f"{round(scene.settings.suspend_deadline_s)} s"
        )
    draft.do(AskToSuspend(attempt.number))
    return None


def rest(scene: Scene, draft: Draft) -> None:
    """Every pod is gone: the clock stands still from now on."""
    if draft.ledger.suspended_since is None:
        draft.note(suspended_since=written(scene.now))
        draft.tell("Normal", "Suspended", "Every pod is gone; suspend: false goes on")


def resume(scene: Scene, draft: Draft) -> None:
    """The wish was taken back: the clock goes on."""
    since = draft.ledger.suspended_since
    if since is None:
        return
    slept = max(seconds_since(since, scene.now), 0.0)
    draft.set(suspended_seconds=draft.status.suspended_seconds + slept)
    draft.note(suspended_since=None)
    draft.tell("Normal", "Resumed", f"Suspended for {round(slept)} s")


def _driver_is_up(scene: Scene, attempt: Attempt) -> bool:
    """By its word or, for an operator that has just started and heard none yet, by its RayJob."""
    job = scene.job(attempt.number) or {}
    status = job.get("status") or {}
    return scene.word(attempt.number) is not None or status.get("jobStatus") == "RUNNING"


def _end(message: str) -> End:
    return End("Suspended", LossReason.SUSPENDED, message)
