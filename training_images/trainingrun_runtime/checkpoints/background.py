"""Work beside training."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

LESS = 10
"""By so much such a thread's niceness is above that of those that train: these get ten times the
share of a CPU that both want."""
LARGEST = 19
"""The largest niceness there is."""


def behind_training(work: Callable[[], T]) -> T:
    """The result of `work`, from a thread that leaves the CPU to those that train.

    A thread of its own, since one that has given way may not take it back. The threads that `work`
    starts give way too.
    """
    with ThreadPoolExecutor(1, "behind-training", _give_way) as pool:
        return pool.submit(work).result()


def begin_behind_training(work: Callable[[], None]) -> threading.Thread:
    """Begin the same without waiting for it; the process may end meanwhile."""

    def behind() -> None:
        _give_way()
        work()

    thread = threading.Thread(target=behind, name="behind-training", daemon=True)
    thread.start()
    return thread


def _give_way() -> None:
    if sys.platform != "linux":  # elsewhere a process has one priority
        return
    thread = threading.get_native_id()
    niceness = os.getpriority(os.PRIO_PROCESS, thread) + LESS
    with suppress(OSError):
        if niceness <= LARGEST:
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
        else:
            # Ray gives its workers a niceness of 15, and 19 is half the share of that. A twelfth:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # 0: this thread
