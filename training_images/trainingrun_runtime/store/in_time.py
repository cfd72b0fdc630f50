"""Calls of the operating system that may not return, as of a mount whose server is gone.

Nothing interrupts such a call. So each is made in a thread of its own, and whoever waits for it
does so for a limited time. The thread is left behind, until the call returns or the process ends.
"""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

_MOST = 64
"""Calls under way at once; those that hang count, so that retries make no threads without end."""
_slots = threading.BoundedSemaphore(_MOST)
_own = threading.local()


def _forget_the_parents() -> None:
    global _slots
    _slots = threading.BoundedSemaphore(_MOST)


if hasattr(os, "register_at_fork"):  # a forked process has none of the threads
    os.register_at_fork(after_in_child=_forget_the_parents)


def in_time(call: Callable[[], T], limit_s: float) -> T:
    """Its result, or what it raises.

    Raises:
        TimeoutError: It has not returned after `limit_s` seconds; it may still do so.
    """
    slots, deadline = _slots, time.monotonic() + limit_s
    if not slots.acquire(timeout=limit_s):
        raise TimeoutError
    answer: Future[T] = Future()

    def work() -> None:
        _own.deadline = deadline
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)
        finally:
            slots.release()

    threading.Thread(target=work, name="storage", daemon=True).start()
    return answer.result(max(deadline - time.monotonic(), 0))


def require_waiting() -> None:
    """Call within `in_time`, before what others see: a call that comes too late has no effect.

    Raises:
        TimeoutError: Nobody waits for this call any longer.
    """
    if time.monotonic() > _own.deadline:
        raise TimeoutError
