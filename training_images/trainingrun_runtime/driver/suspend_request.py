"""The request to suspend: a file in the state directory of the head's pod."""

import threading
from collections.abc import Callable

from trainingrun_protocol.contract import SUSPEND_FILE

from ..state_directory import state_directory

POLL_S = 0.25


def requested() -> bool:
    """Whether the run is to be suspended."""
    return (state_directory() / SUSPEND_FILE).exists()


def watch(ended: threading.Event, suspend: Callable[[], None]) -> None:
    """Call `suspend` once it is requested; returns then, or when `ended` is set."""
    while not ended.wait(POLL_S):
        if requested():
            suspend()
            return
