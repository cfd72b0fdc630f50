"""When a head is polled: within one rate, and within a number of polls at the same time.

Namespaces take turns, so that many runs of one, or heads in it that answer slowly, keep no other
one waiting. Heads that were slow or silent the last time share a quarter of the places.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from .fair_queue import FairQueue

TOGETHER_S = 0.25
"""Polls begin at multiples of this: with many runs, ten at a time cost half of ten one by one."""


class _Lane:
    """Polls that share some places."""

    def __init__(self, places: int) -> None:
        self.free = places
        self.waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    def begin_next(self) -> bool:
        """Whether one has begun."""
        while self.free and self.waiting:
            future = self.waiting.pop()
            if not future.done():  # else it was cancelled
                self.free -= 1
                future.set_result(None)
                return True
        return False


class PollTurns:
    """Single event loop only."""

    def __init__(self, per_second: float, concurrency: int) -> None:
        """Nothing waits.

        Args:
            per_second: Polls that begin per second, but for those at once.
            concurrency: Polls at the same time; of slow heads, and at once, a quarter more each.
        """
        self._quick = _Lane(concurrency)
        self._slow, self._at_once = (_Lane(max(1, concurrency // 4)) for _ in range(2))
        self._each_time = per_second * TOGETHER_S
        self._left, self._tick_at = 0.0, 0.0
        self._tick: asyncio.TimerHandle | None = None

    def turn(self, namespace: str, *, slow: bool) -> AbstractAsyncContextManager[None]:
        """A poll in its turn: wait for it, then poll inside.

        Args:
            namespace: Of the run.
            slow: Whether its head was slow, or silent, the last time.
        """
        return self._place(self._slow if slow else self._quick, namespace)

    def at_once(self, namespace: str) -> AbstractAsyncContextManager[None]:
        """A poll as soon as there is a place, whatever the rate."""
        return self._place(self._at_once, namespace)

    def close(self) -> None:
        """No turn comes any more."""
        if self._tick is not None:
            self._tick.cancel()

    @asynccontextmanager
    async def _place(self, lane: _Lane, namespace: str) -> AsyncIterator[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.waiting.put(namespace, future)
        self._wake(lane)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._free(lane)
            raise
        try:
            yield
        finally:
            self._free(lane)

    def _free(self, lane: _Lane) -> None:
        lane.free += 1
        self._wake(lane)

    def _wake(self, lane: _Lane) -> None:
        if lane is self._at_once:
            lane.begin_next()
        elif self._tick is None and lane.waiting and lane.free:
            now = time.monotonic()
            self._tick_at = max(self._tick_at, math.ceil(now / TOGETHER_S) * TOGETHER_S)
            loop = asyncio.get_running_loop()
            self._tick = loop.call_later(self._tick_at - now, self._begin_together)

    def _begin_together(self) -> None:
        self._tick = None
        self._tick_at += TOGETHER_S
        self._left = min(self._left + self._each_time, max(1.0, self._each_time))
        begun = True
        while begun and self._left >= 1:
            begun = False
            for lane in (self._quick, self._slow):
                if self._left >= 1 and lane.begin_next():
                    self._left -= 1
                    begun = True
        for lane in (self._quick, self._slow):
            self._wake(lane)
