"""Threads that a driver has beside its training."""

import threading
from collections.abc import Callable

JOIN_S = 60.0
"""More than the longest request to the store."""


class Background:
    """Daemon threads that end when they are told to.

    Args:
        works: by name; each returns soon after `ended` is set.
    """

    def __init__(self, **works: Callable[[threading.Event], None]) -> None:
        self.ended = threading.Event()
        """Set when they are to end."""
        self._threads = [
            threading.Thread(target=work, args=(self.ended,), name=name, daemon=True)
            for name, work in works.items()
        ]

    def start(self) -> None:
        """Start all of them."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Have them end, and wait for it.

        A call to Ray after its shutdown would end the process with exit code 1.
        """
        self.ended.set()
        for thread in self._threads:
            thread.join(JOIN_S)
