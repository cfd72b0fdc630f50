"""How often a large status is written: etcd stores all of it each time, whatever has changed.

What a run measures changes at each poll. Where a status is large, as that of a sweep of 200 trials,
such changes wait a little; whatever was decided or counted is written at once.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ..cluster.object_store import encoded
from .work_queue import Key

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
