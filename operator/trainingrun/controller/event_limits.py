"""How many Events a run may have: the code of a run brings about as many as it likes.

Each reason has an allowance of its own, so that many of one reason suppress no other one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ..api.reasons import EventReason
from ..reconciling.model import RunEvent
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
