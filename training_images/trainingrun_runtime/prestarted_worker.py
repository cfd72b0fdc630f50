"""Keeps one spare worker process on each worker's node, with everything loaded already.

Most of a restart is Python starting and importing. The raylet can start a process ahead of need
and gives it to the next actor with the same runtime environment, which is the worker's successor.
The environment says to call `load` first, so the spare has PyTorch and whatever else the worker had
loaded before anyone asks for it; that takes the memory of one idle Python process with PyTorch.
"""

import contextlib
import importlib
import logging
import sys
import threading

from .coordination.preemption_notice import state_folder
from .ray_internals import nodes

log = logging.getLogger(__name__)

DELAY_S = 3.0
"""After the start of training: the first steps need the CPU more."""
KEEP_S = 30 * 24 * 3600
FILE = "modules"
"""Names of the modules that this pod's worker has loaded, in the state directory."""

ENVIRONMENT = {nodes.SETUP_HOOK_ENV: f"{__name__}.load"}
"""Variables of the workers' runtime environment."""


def keep() -> threading.Timer:
    """Have this node's raylet start a spare for this worker soon; cancel it at the end."""
    timer = threading.Timer(DELAY_S, _start)
    timer.daemon = True
    timer.start()
    return timer


def _start() -> None:
    try:
        names = [name for name in list(sys.modules) if name not in ("__main__", "__mp_main__")]
        (state_folder() / FILE).write_text("\n".join(names))
        nodes.start_spare(KEEP_S)
    except Exception as error:  # without a spare a restart is slower, not wrong
        log.warning("no spare worker process was started: %s", error)


def load() -> None:
    """Import what the worker before this one had loaded. Each worker process calls it first."""
    import ray.train.torch  # noqa: F401 - what a first one needs, before it is told what to do
    import torch._dynamo  # noqa: F401 - a second, which DistributedDataParallel takes otherwise

    file = state_folder() / FILE
    for name in file.read_text().splitlines() if file.exists() else ():
        # What cannot be imported again is told of when it is asked for; here the error would only
        # kill the process, again and again.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
