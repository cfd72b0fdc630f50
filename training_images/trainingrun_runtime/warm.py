"""Keeps one spare worker process on each worker's node, with PyTorch loaded already.

Most of a restart is Python starting and importing: 5 s of the 7 that `kill -9` costs stock Ray.
The raylet can start a process ahead of need (`PrestartWorkers` of Ray's `node_manager.proto`), and
gives it to the next actor with the same runtime environment, which is the worker's successor. The
environment says to load what this worker has loaded by then (`preload`), before anyone asks for it;
that takes the memory of one idle Python process with PyTorch.
"""

import logging
import threading

from . import preload
from .seam import nodes

log = logging.getLogger(__name__)

DELAY_S = 3.0
"""After the start of training: the first steps need the CPU more."""
KEEP_S = 30 * 24 * 3600


def keep_spare() -> threading.Timer:
    """Have this node's raylet start a spare for this worker soon; cancel it at the end."""
    timer = threading.Timer(DELAY_S, _start_spare)
    timer.daemon = True
    timer.start()
    return timer


def _start_spare() -> None:
    try:
        preload.remember()
        nodes.start_spare(KEEP_S)
    except Exception as error:  # without a spare a restart is slower, not wrong
        log.warning("no spare worker process was started: %s", error)
