"""What should end by itself, and for ever waits where it is broken."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """Fail where what is inside, in the main thread, takes longer."""

    def late(*_: Any) -> None:
        raise AssertionError(f"it has not ended within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
