"""Which runs to reconcile next: each at most once in the queue, and never by two workers at a time.

What made a run be queued is not kept: a worker reads everything anew. Events that come while a
run is being reconciled queue it again, so none are lost. Namespaces take turns: however many runs
of one are queued, a run of another one waits for a few reconciles.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable

from .fair_queue import FairQueue

Key = tuple[str, str]
"""Namespace and name of a run."""

MOST_SLOW = 8
"""Slow reconciles at once before another one begins that is expected to be slow."""
MOST_BESIDE = 32
"""Slow reconciles at once beside which others begin; all together they are fewer than the
connections to the API server (`api_client.REQUESTS`)."""


class WorkQueue:
    """Single event loop only. A worker calls `get`, reconciles, then either `done` or `failed`."""

    def __init__(
        self,
        retry_initial_s: float = 0.1,
        retry_max_s: float = 30.0,
        *,
        parallel: int = 8,
        slow_s: float = 1.0,
    ):
        """An empty queue.

        Args:
            retry_initial_s: The first wait of `failed`, in seconds.
            retry_max_s: The longest one.
            parallel: Reconciles at once, slow ones aside.
            slow_s: A reconcile that takes longer, in seconds, is slow.
        """
        self._initial_s, self._max_s = retry_initial_s, retry_max_s
        self._lanes = _Lanes(parallel, slow_s, self._wake_one)
        self._ready: FairQueue[Key] = FairQueue()
        self._ready_slow: FairQueue[Key] = FairQueue()
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
        """The run that is to begin; waits until there is one."""
        # A reconcile that finds nothing to do waits for nothing: thousands of them in a row would
        # keep the event loop from renewing the Lease.
        await asyncio.sleep(0)
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
        """Takes out the run that is to begin; None: there is none, or as many run as may."""
        while self._ready and self._lanes.has_room(slow=False):
            key = self._ready.pop()
            if not self._lanes.is_slow(key):
                return key
            self._ready_slow.put(key[0], key)
        if self._ready_slow and self._lanes.has_room(slow=True):
            return self._ready_slow.pop()
        return None

    def _end(self, key: Key) -> None:
        self._working.discard(key)
        self._lanes.ended(key)
        if key in self._waiting:
            self._make_ready(key)
        self._wake_one()

    def _make_ready(self, key: Key) -> None:
        self._ready.put(key[0], key)
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


class _Lanes:
    """Which reconciles may begin: slow ones take no more than their share of the operator.

    A reconcile waits for the API server, and where a webhook is slow, for long. One that takes
    longer than `slow_s` lets another one begin. Of runs that were slow the last time, and of new
    ones beside such in their namespace, only a few are reconciled at once.
    """

    def __init__(self, parallel: int, slow_s: float, on_room: Callable[[], None]):
        """`on_room` is called when one turns out to be slow, and another one may begin."""
        self._parallel, self._slow_s, self._on_room = parallel, slow_s, on_room
        self._begun: dict[Key, asyncio.TimerHandle] = {}
        self._slow_now: set[Key] = set()
        self._was_slow: dict[Key, bool] = {}
        self._slow_in: Counter[str] = Counter()

    def is_slow(self, key: Key) -> bool:
        """Whether its next reconcile is expected to be slow."""
        return self._was_slow.get(key, self._slow_in[key[0]] > 0)

    def has_room(self, *, slow: bool) -> bool:
        """Whether a reconcile that is expected to be slow, or one that is not, may begin."""
        if len(self._begun) >= self._parallel + MOST_BESIDE:
            return False
        if slow:
            return len(self._slow_now) < MOST_SLOW
        return len(self._begun) - len(self._slow_now) < self._parallel

    def began(self, key: Key) -> None:
        """A reconcile of this run has begun."""
        if self.is_slow(key):
            self._slow_now.add(key)
        loop = asyncio.get_running_loop()
        self._begun[key] = loop.call_later(self._slow_s, self._turned_slow, key)

    def ended(self, key: Key) -> None:
        """It has ended."""
        timer = self._begun.pop(key)
        self._remember(key, slow=timer.when() <= asyncio.get_running_loop().time())
        timer.cancel()
        self._slow_now.discard(key)

    def forget(self, key: Key) -> None:
        """The run is gone."""
        if self._was_slow.pop(key, False):
            self._count(key, -1)

    def close(self) -> None:
        """Ends every timer."""
        for timer in self._begun.values():
            timer.cancel()

    def _turned_slow(self, key: Key) -> None:
        self._remember(key, slow=True)
        self._slow_now.add(key)
        self._on_room()

    def _remember(self, key: Key, *, slow: bool) -> None:
        self._count(key, slow - self._was_slow.get(key, False))
        self._was_slow[key] = slow

    def _count(self, key: Key, change: int) -> None:
        self._slow_in[key[0]] += change
        if not self._slow_in[key[0]]:
            del self._slow_in[key[0]]
