"""How many Events a run may have, and how often a large status of it is written.

The code of a run brings about as many events as it likes. Each reason has an allowance of its own,
so that many of one reason suppress no other one.

What a run measures changes at each poll, and etcd stores the whole status each time. Where it is
large, as that of a sweep of 200 trials, such changes wait a little; whatever was decided or counted
is written at once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..api.reasons import EventReason
from ..cluster.object_store import encoded
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


BYTES_PER_S = 8192.0
"""Of one run's status, for measurements alone."""
MOST_S = 30.0
"""The longest wait."""

MEASURED = ("progress", "checkpoint", "sweep", "goodput")
"""Fields of a status that hold what the training reports."""
MEASURED_OF_ATTEMPTS = ("lastStep",)
MEASURED_OF_SEEN = ("driver", "lastStep", "bestStep")


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
    kept["seen"] = _without(status.get("seen") or {}, MEASURED_OF_SEEN)
    return kept


def _without(found: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in names}
