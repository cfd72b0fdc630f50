"""When an action that has failed is tried again, how many Events a run may have, and how often a
large status of it is written.

Each action is tried again on its own, and none holds up another. A fault of the moment is tried
again soon. What the API server refuses stays so until someone changes a policy, a quota or the run,
and is tried seldom, whatever events come in meanwhile.

The code of a run brings about as many events as it likes. Each reason has an allowance of its own,
so that many of one reason suppress no other one.

What a run measures changes at each poll, and etcd stores the whole status each time. Where it is
large, as that of a sweep of 200 trials, such changes wait a little; whatever was decided or counted
is written at once.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ..api.reasons import EventReason
from ..cluster.api_client import ClusterError, Forbidden, Rejected, Unusable, text_of
from ..cluster.object_store import encoded
from ..reconciling.model import Action, ActionKey, FailingAction, RunEvent, key_of
from .work_queue import Key

BURST = 10
"""Events of one reason that are emitted at once."""
REFILL_S = 60.0
"""Seconds until one more may be."""


@dataclass(slots=True)
class _Allowance:
    left: float
    at: float
    left_out: int = 0


class EventLimits:
    """The allowances of all runs; a restart gives them anew."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds that only go forward."""
        self._clock = clock
        self._runs: dict[Key, dict[EventReason, _Allowance]] = {}

    def admit(self, key: Key, events: Iterable[RunEvent]) -> list[RunEvent]:
        """Those that are to be emitted; the next one of a reason tells how many were left out."""
        return [admitted for event in events if (admitted := self._admit(key, event))]

    def forget(self, key: Key) -> None:
        """The run is gone."""
        self._runs.pop(key, None)

    def _admit(self, key: Key, event: RunEvent) -> RunEvent | None:
        now = self._clock()
        of_run = self._runs.setdefault(key, {})
        allowance = of_run.setdefault(event.reason, _Allowance(BURST, now))
        refilled = allowance.left + (now - allowance.at) / REFILL_S
        allowance.left, allowance.at = min(BURST, refilled), now
        if allowance.left < 1:
            allowance.left_out += 1
            return None
        allowance.left -= 1
        left_out, allowance.left_out = allowance.left_out, 0
        if not left_out:
            return event
        return replace(event, message=f"{event.message} ({left_out} such events were left out)")


BYTES_PER_S = 8192.0
"""Of one run's status, for measurements alone."""
MOST_S = 30.0
"""The longest wait."""

MEASURED = ("progress", "checkpoint", "sweep", "goodput", "cost")
"""Fields of a status that hold what the training reports."""
MEASURED_OF_ATTEMPTS = ("lastStep",)
MEASURED_OF_SEEN = ("driver", "lastStep", "bestStep", "meter", "sizes")
MEASURED_OF_WORKERS = ("sizes",)


class StatusPace:
    """When each run's status was written last."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds that only go forward."""
        self._clock = clock
        self._written_at: dict[Key, float] = {}

    def wait_s(self, key: Key, former: Mapping[str, Any], status: Mapping[str, Any]) -> float:
        """Seconds until it is to be written; 0: now."""
        written_at = self._written_at.get(key)
        if written_at is None or _decided(former) != _decided(status):
            return 0.0
        pause_s = min(MOST_S, len(encoded(status)) / BYTES_PER_S)
        return max(0.0, written_at + pause_s - self._clock())

    def wrote(self, key: Key) -> None:
        """It was written."""
        self._written_at[key] = self._clock()

    def forget(self, key: Key) -> None:
        """The run has ended or is gone."""
        self._written_at.pop(key, None)


def _decided(status: Mapping[str, Any]) -> dict[str, Any]:
    """The status without what only measures the training."""
    kept = _without(status, MEASURED)
    kept["attempts"] = [_without(one, MEASURED_OF_ATTEMPTS) for one in status.get("attempts") or ()]
    kept["workers"] = _without(status.get("workers") or {}, MEASURED_OF_WORKERS)
    kept["seen"] = _without(status.get("seen") or {}, MEASURED_OF_SEEN)
    return kept


def _without(fields: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


UNANSWERED_S = (0.1, 30.0)
"""First and longest wait after a failure without an answer; it doubles with each."""
REFUSED_S = 27.0
"""Until an object is tried again that a policy, a quota or a webhook refuses."""
UNUSABLE_S = 600.0
"""The longest wait for one that is invalid or too large; the first is `REFUSED_S`, it doubles."""

STATUS: ActionKey = ("change", "TrainingRun", "")
"""Writing the run's status, which is no action of a plan."""


@dataclass(frozen=True, slots=True)
class _Failing:
    shown: FailingAction
    tries: int
    due_at: float


class ActionRetries:
    """The actions on one run that do not work. Kept in memory: a restart tries all of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """None has failed. `clock` gives seconds that only go forward."""
        self._clock = clock
        self._failing: dict[ActionKey, _Failing] = {}
        self.acted = False
        """Whether a plan was carried out."""

    def keep(self, actions: Iterable[Action]) -> None:
        """Forgets what is not planned any more."""
        planned = {key_of(action) for action in actions} | {STATUS}
        self._failing = {key: one for key, one in self._failing.items() if key in planned}
        self.acted = True

    def due(self, key: ActionKey | None) -> bool:
        """Whether to try this action now."""
        known = self._failing.get(key) if key else None
        return known is None or known.due_at <= self._clock()

    def failed(self, key: ActionKey, error: Exception, now: datetime) -> bool:
        """It was tried and did not work; whether that is new. `now` is the wall clock's."""
        known = self._failing.get(key)
        tries = known.tries + 1 if known else 1
        since = known.shown.since if known else now
        text = text_of(error)
        if not isinstance(error, ClusterError):
            text = f"{type(error).__name__}: {text}"
        shown = FailingAction(*key, text, _refused(error), since)
        self._failing[key] = _Failing(shown, tries, self._clock() + self._wait_s(error, tries))
        return known is None or known.shown != shown

    def worked(self, key: ActionKey | None) -> None:
        """It was tried and has worked."""
        if key:
            self._failing.pop(key, None)

    def failing(self) -> tuple[FailingAction, ...]:
        """What of the plan's actions fails."""
        return tuple(one.shown for key, one in self._failing.items() if key != STATUS)

    def __bool__(self) -> bool:
        """Whether anything fails."""
        return bool(self._failing)

    def due_in_s(self, keys: Collection[ActionKey | None]) -> float | None:
        """Seconds until the first of these is tried; None: none of them fails."""
        due_at = min(
            (one.due_at for key, one in self._failing.items() if key in keys), default=None
        )
        return None if due_at is None else max(0.0, due_at - self._clock())

    def _wait_s(self, error: Exception, tries: int) -> float:
        doubled = 2.0 ** min(tries - 1, 30)
        if isinstance(error, Unusable) or not isinstance(error, ClusterError):
            return min(UNUSABLE_S, REFUSED_S * doubled)
        if _refused(error):
            return REFUSED_S
        return min(UNANSWERED_S[1], UNANSWERED_S[0] * doubled)


def _refused(error: Exception) -> bool:
    """Whether the API server answered about the object, and not merely failed to answer.

    A webhook that is down makes it answer 500, for as long as the webhook is down.
    """
    return isinstance(error, (Rejected, Forbidden)) or "failed calling webhook" in str(error)
