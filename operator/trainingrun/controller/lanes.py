"""Which reconciles may begin: slow ones take no more than their share of the operator.

A reconcile waits for the API server, and where a webhook is slow, for long. One that takes longer
than `SLOW_S` lets another one begin. Of runs that were slow the last time, and of new ones beside
such in their namespace, only a few are reconciled at once.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

Key = tuple[str, str]
"""Namespace and name of a run."""

SLOW_S = 1.0
"""A reconcile that takes longer is slow."""
MOST_SLOW = 8
"""Slow reconciles at once before another one begins that is expected to be slow."""
MOST_BESIDE = 32
"""Slow reconciles at once beside which others begin; all together they are fewer than the
connections to the API server (`api_client.REQUESTS`)."""


class Lanes:
    """Single event loop only."""

    def __init__(
        self, parallel: int, slow_s: float = SLOW_S, on_room: Callable[[], None] = lambda: None
    ):
        """Nothing has begun.

        Args:
            parallel: Reconciles at once, slow ones aside.
            slow_s: A reconcile that takes longer is slow.
            on_room: Called when one turns out to be slow, and another one may begin.
        """
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
