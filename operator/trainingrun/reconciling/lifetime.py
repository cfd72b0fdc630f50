"""The run's own clock: acceptance, the deadline, the end and what comes after it."""

from ..api.status import RunStatus
from ..api.v1alpha1 import API_VERSION, KIND
from . import attempts, diagnosis, disruptions, goodput, stuck
from .diagnosis import Trouble
from .draft import Draft
from .endings import End
from .failures import Over
from .model import Delete, Ref
from .moments import seconds_since, written
from .scene import Scene


def start(scene: Scene, draft: Draft) -> None:
    """Accepted: the clock starts."""
    if draft.status.start_time is None:
        draft.set(start_time=written(scene.now))


def over(status: RunStatus) -> bool:
    """Whether the run has ended; it stays ended."""
    return status.completion_time is not None


def deadline(scene: Scene, draft: Draft) -> Over | None:
    """Whether activeDeadlineSeconds have passed; if not, look again when they will have."""
    limit = scene.run.spec.active_deadline_seconds
    start_time = draft.status.start_time
    if limit is None or start_time is None or draft.ledger.suspended_since is not None:
        return None
    left = limit - (seconds_since(start_time, scene.now) - draft.status.suspended_seconds)
    if left > 0:
        draft.look_within(left)
        return None
    return Over(
        "DeadlineExceeded",
        f"The run was active for longer than activeDeadlineSeconds, which is {limit}",
    )


def deadline_end(scene: Scene, draft: Draft) -> End | None:
    """The deadline as the end of the running attempt."""
    passed = deadline(scene, draft)
    return End("Failed", None, passed.message, passed) if passed else None


def fail(scene: Scene, draft: Draft, cause: Over) -> None:
    """End the run between two attempts."""
    draft.set(completion_time=written(scene.now), next_attempt_time=None)
    draft.over = cause
    goodput.settle(draft, scene.now)
    draft.tell("Warning", "Failed", cause.message)
    draft.look_within(0)


def after_the_end(scene: Scene, draft: Draft) -> Trouble | None:
    """Clear away what is left, and at last the run itself; what keeps machines that are left.

    This comes only after the end was written: deleting first and crashing would leave a run that
    begins a new attempt. It is looked at until everything is gone: one failed delete would keep
    machines busy for nothing.
    """
    gone = attempts.clear_away(scene, draft)
    disruptions.free_stuck_pods(scene, draft)
    stuck_by = None if gone else diagnosis.of_access(scene) or stuck.of_leftovers(scene, draft)
    ttl = scene.run.spec.ttl_seconds_after_finished
    ended = draft.status.completion_time
    if ttl is None or ended is None or scene.unknown(KIND):
        return stuck_by
    left = ttl - seconds_since(ended, scene.now)
    if left > 0:
        draft.look_within(left)
    elif gone:
        meta = scene.run.metadata
        draft.do(Delete(Ref(API_VERSION, KIND, meta.namespace, meta.name, meta.uid)))
    return stuck_by
