"""Readings that all requests share: ten open tabs ask the cluster once.

A reading goes on beside whoever waits for it, so that a page without it is there in time. What
takes long is read more seldom: a tenth of the time at most.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from ...api.errors import RunError
from ...client.errors import UnreachableError
from ...client.following import passes
from ...reconciling.texts import short

Value = TypeVar("Value")

_SHARE = 10.0
_WAIT_S = 20.0
"""For a first reading."""
_WAIT_AGAIN_S = 2.0
"""For a further one: until it is there, the former one is shown."""
_AFTER_ERROR_S = 60.0
"""What fails is tried again so soon, however long it took."""
_SOON_S = 2.0
"""A page asks again so soon for a reading that is under way."""
_MOST = 64
"""Readings that are kept; those that nobody has asked for longest are forgotten."""


class Reading(NamedTuple, Generic[Value]):
    """What was read."""

    value: Value | None = None
    """None: nothing was."""
    time: float = 0.0
    """Unix time in seconds of that."""
    problem: RunError | None = None
    """Why there is nothing, or nothing newer."""
    every_s: float = 1.0
    """It is renewed so often."""


@dataclass
class _Entry(Generic[Value]):
    reading: Reading[Value] = field(default_factory=Reading)
    began: float = 0.0
    """The last reading, in seconds of the monotonic clock; as `until`."""
    until: float = 0.0
    """It need not be read again before."""
    read: threading.Event | None = None
    """Set once the reading is there that is under way, or was the last one."""

    def renew(self, read: Callable[[], Value], fresh_s: float, done: threading.Event) -> None:
        former = self.reading
        try:
            self.reading = Reading(read(), time.time(), None, self._every_s(fresh_s))
        except Exception as error:  # an answer may be anything
            problem = error if isinstance(error, RunError) else unreadable(error)
            # What was read before may still be so, and may still be shown to this user.
            kept = former if passes(error) else Reading[Value]()
            every_s = min(self._every_s(fresh_s), max(fresh_s, _AFTER_ERROR_S))
            self.reading = kept._replace(problem=problem, every_s=every_s)
        self.until = time.monotonic() + self.reading.every_s
        done.set()

    def _every_s(self, fresh_s: float) -> float:
        return max(fresh_s, _SHARE * (time.monotonic() - self.began))


class Shared:
    """Readings by what was read."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, _Entry[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self, key: Hashable, read: Callable[[], Value], fresh_s: float, wait_s: float | None = None
    ) -> Reading[Value]:
        """The latest reading, as far as it is there in time.

        Args:
            key: What is read; one key has values of one type.
            read: Reads it. Raises RunError.
            fresh_s: Seconds for which it need not be read again.
            wait_s: Seconds that a first reading is waited for.
        """
        with self._lock:
            entry: _Entry[Value] = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            if len(self._entries) > _MOST:
                self._entries.popitem(last=False)
            done = entry.read
            if done is None or (done.is_set() and time.monotonic() >= entry.until):
                done, entry.began = threading.Event(), time.monotonic()
                entry.read = done
                threading.Thread(
                    target=entry.renew, args=(read, fresh_s, done), daemon=True
                ).start()
        first_s = _WAIT_S if wait_s is None else wait_s
        waited_s = first_s if entry.reading.value is None else _WAIT_AGAIN_S
        if done.wait(waited_s):
            return entry.reading
        found, took_s = entry.reading._replace(every_s=_SOON_S), time.monotonic() - entry.began
        if found.value is not None and took_s < first_s:
            return found
        problem = UnreachableError(f"there is no answer after {took_s:.0f} s; it is waited for")
        return found._replace(problem=problem)


def unreadable(error: Exception) -> RunError:
    """What is said of an answer that is not as this version knows it."""
    return RunError(
        f"what was read cannot be shown ({type(error).__name__}: {short(str(error), 200)}); is "
        "this command of the operator's version?"
    )
