"""How many bytes the stacks of this pod's ranks are that were sent to the head.

They are the watch's own traffic and no work of the ranks, whose meters leave them out.
"""

import threading
from contextlib import suppress

from ..state_directory import state_directory

FILE = "stacks-sent"
"""In the state directory of the pod."""
OVERHEAD = 10_000
"""Bytes that a transfer may take beside its content."""
_writing = threading.Lock()


def send(content: int) -> None:
    """So many bytes are sent next. One process of the pod calls it."""
    with _writing, suppress(OSError):
        part = state_directory() / f"{FILE}.part"
        part.write_text(str(bytes_sent() + content + OVERHEAD))
        part.replace(state_directory() / FILE)


def bytes_sent() -> int:
    """Bytes so far."""
    try:
        return int((state_directory() / FILE).read_text())
    except (OSError, ValueError):  # none were
        return 0
