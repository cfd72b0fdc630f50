"""When an action that has failed is tried again: each on its own, and none holds up another.

A fault of the moment is tried again soon. What the API server refuses stays so until someone
changes a policy, a quota or the run, and is tried seldom, whatever events come in meanwhile.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from ..cluster.api_client import Forbidden
from ..cluster.interface import ClusterError, Rejected, Unusable, text_of
from ..reconciling.model import Action, ActionKey, FailingAction, key_of

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

    def __init__(
        self, clock: Callable[[], float], *, first_s: float = 0.1, most_s: float = 30.0
    ) -> None:
        """None has failed.

        Args:
            clock: Seconds that only go forward.
            first_s: Wait after the first failure without an answer; it doubles with each.
            most_s: The longest such wait.
        """
        self._clock, self._first_s, self._most_s = clock, first_s, most_s
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

    def found(self) -> tuple[FailingAction, ...]:
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
        return min(self._most_s, self._first_s * doubled)


def _refused(error: Exception) -> bool:
    """Whether the API server answered about the object, and not merely failed to answer.

    A webhook that is down makes it answer 500, for as long as the webhook is down.
    """
    return isinstance(error, (Rejected, Forbidden)) or "failed calling webhook" in str(error)
