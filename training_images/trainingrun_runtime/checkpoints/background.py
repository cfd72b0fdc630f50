"""Work beside training."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

NICENESS = 10
"""Of 19. A thread that trains gets ten times the share of a CPU that both want."""


def behind_training(work: Callable[[], T]) -> T:
    """The result of `work`, from a thread that leaves the CPU to those that train.

    A thread of its own, since one that has given way may not take it back.
    """
    with ThreadPoolExecutor(1, "behind-training", _give_way) as pool:
        return pool.submit(work).result()


def _give_way() -> None:
    if sys.platform == "linux":  # elsewhere a process has one priority
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
