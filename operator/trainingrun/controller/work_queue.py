"""Which runs to reconcile next: each at most once in the queue, and never by two workers at a time.

What made a run be queued is not kept: a worker reads everything anew. Events that come while a
run is being reconciled queue it again, so none are lost.
"""

import asyncio
from collections import deque

from .lanes import SLOW_S, Lanes
from .lanes import Key as Key


class WorkQueue:
    """Single event loop only. A worker calls `get`, reconciles, then either `done` or `failed`."""

    def __init__(
        self,
        retry_initial_s: float = 0.1,
        retry_max_s: float = 30.0,
        *,
        parallel: int = 8,
        slow_s: float = SLOW_S,
    ):
        """An empty queue.

        Args:
            retry_initial_s: The first wait of `failed`, in seconds.
            retry_max_s: The longest one.
            parallel: See `Lanes`.
            slow_s: See `Lanes`.
        """
        self._initial_s, self._max_s = retry_initial_s, retry_max_s
        self._lanes = Lanes(parallel, slow_s, self._wake_one)
        self._ready: deque[Key] = deque()
        self._ready_slow: deque[Key] = deque()
        self._waiting: set[Key] = set()  # in _ready, or to be put there when its worker is done
        self._working: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key) -> None:
        """Queues a run, unless it is queued already."""
        if key in self._waiting or self._closed:
            return
        self._waiting.add(key)
        if key not in self._working:
            self._make_ready(key)

    async def get(self) -> Key:
        """The run that waits longest of those that may begin; waits until there is one."""
        while (key := self._next()) is None:
            getter = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                # Woken and cancelled at once: hand the wake-up on, or a run would sit unseen.
                if getter.done() and not getter.cancelled():
                    self._wake_one()
                raise
        self._lanes.began(key)
        self._waiting.discard(key)
        self._working.add(key)
        self._cancel_timer(key)
        return key

    def done(self, key: Key, requeue_after_s: float | None = None) -> None:
        """It worked; the next one is due after `requeue_after_s`, or when something happens."""
        self._failures.pop(key, None)
        self._end(key)
        if requeue_after_s is not None:
            self._add_later(key, requeue_after_s)

    def failed(self, key: Key) -> float:
        """It failed; it is tried again after a wait that doubles. Returns that wait."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait_s = min(self._max_s, self._initial_s * 2.0 ** min(failures - 1, 30))
        self._end(key)
        self._add_later(key, wait_s)
        return wait_s

    def forget(self, key: Key) -> None:
        """The run is gone."""
        self._lanes.forget(key)

    def close(self) -> None:
        """Nothing is queued from here on: its workers have ended."""
        self._closed = True
        for key in list(self._timers):
            self._cancel_timer(key)
        self._lanes.close()
        self._ready.clear()
        self._ready_slow.clear()
        self._waiting.clear()

    def _next(self) -> Key | None:
        """Takes out the run that is to begin; None: there is none, or no room for it."""
        while self._ready and self._lanes.has_room(slow=False):
            key = self._ready.popleft()
            if not self._lanes.is_slow(key):
                return key
            self._ready_slow.append(key)
        if self._ready_slow and self._lanes.has_room(slow=True):
            return self._ready_slow.popleft()
        return None

    def _end(self, key: Key) -> None:
        self._working.discard(key)
        self._lanes.ended(key)
        if key in self._waiting:
            self._make_ready(key)
        self._wake_one()

    def _make_ready(self, key: Key) -> None:
        self._ready.append(key)
        self._wake_one()

    def _wake_one(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _add_later(self, key: Key, seconds: float) -> None:
        self._cancel_timer(key)
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(max(0.0, seconds), self._due, key)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
