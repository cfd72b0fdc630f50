"""What the processes of a run tell of their starts, for `store.start_traces`; one lock."""

import threading
from collections.abc import Mapping

from ..store.start_traces import MOST_RANKS, ProcessTimes, RankTimes, StartTrace

_MOST_KEPT = 20
"""Documents that are kept until they are written."""


class StartTimes:
    """The starts of this driver's worker groups.

    Args:
        attempt: the contract's attempt.
        fencing_token: of the driver's lease.
        last_step: Unix time of the last known step of the driver before this one, if it was lost.
    """

    def __init__(self, attempt: int, fencing_token: int, last_step: float | None = None) -> None:
        self._lock, self._version = threading.Lock(), 0
        self._changed: dict[int, int] = {}  # by group, since which version
        self._documents: dict[int, StartTrace] = {}
        self._driver: ProcessTimes | None = None
        self._before = {"last_step": last_step} if last_step else {}
        self._group = StartTrace(attempt=attempt, fencing_token=fencing_token, group=1)

    def driver_times(self, times: Mapping[str, float], pod: str = "", pid: int = 0) -> None:
        """The driver: when it was where."""
        with self._lock:
            known = self._driver or ProcessTimes(pod=pod, pid=pid)
            self._driver = known.model_copy(update={"times": {**known.times, **times}})

    def group_asked(self, time: float) -> None:
        """Ray's controller: it begins to start a worker group.

        One before it that has failed before its ranks agreed on a checkpoint is a part of it.
        """
        with self._lock:
            self._before = {"asked": time, **self._before}
            group = max(self._documents, default=0) + 1
            update = {"group": group, "times": self._before, "world_size": 0, "ranks": []}
            self._group = self._group.model_copy(update=update)

    def group_times(self, times: Mapping[str, float]) -> None:
        """Ray's controller: when its worker group was where; of a mark the first time counts."""
        with self._lock:
            self._change(times={**times, **self._group.times})

    def group_began(self, group: int, world_size: int, step: int) -> None:
        """Rank 0: the group has agreed on a checkpoint, and all of its ranks have joined."""
        with self._lock:
            self._before = {}
            driver = self._driver if not self._documents else None
            self._change(group=group, world_size=world_size, step=step, driver=driver)

    def group_ended(self, now: float, last_step: float | None) -> None:
        """The group has ended before the training was done; `last_step` is when a step last did."""
        with self._lock:
            if self._group.world_size and not self._before:
                self._before = {"last_step": last_step or now, "lost": now}

    def saved(self, now: float) -> None:
        """Survivors have saved the last step."""
        with self._lock:
            if "lost" in self._before:
                self._before = {**self._before, "saved": now}

    def rank_times(self, group: int, found: RankTimes) -> None:
        """A worker: when it was where, once in each group."""
        with self._lock:
            if group != self._group.group:
                return
            ranks = {one.rank: one for one in (*self._group.ranks, found)}
            kept = sorted(ranks.values(), key=_order)[:MOST_RANKS]
            self._change(ranks=sorted(kept, key=lambda one: one.rank))

    def _change(self, **update: object) -> None:
        self._group = self._group.model_copy(update=update)
        if self._group.world_size:
            number = self._group.group
            self._version += 1
            self._documents[number], self._changed[number] = self._group, self._version
            while len(self._documents) > _MOST_KEPT:
                oldest = min(self._documents)
                del self._documents[oldest], self._changed[oldest]

    def changed_after(self, version: int) -> tuple[int, list[StartTrace]]:
        """The driver: the documents that have changed since a version, and the version of now."""
        with self._lock:
            changed = [n for n, since in sorted(self._changed.items()) if since > version]
            return self._version, [self._documents[number] for number in changed]


def _order(one: RankTimes) -> tuple[bool, float]:
    return one.rank != 0, -max(one.times.values(), default=0.0)
