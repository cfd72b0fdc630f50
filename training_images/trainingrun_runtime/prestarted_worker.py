"""Keeps one prestarted worker process on each worker's node, with its modules imported.

Most of a restart is the start of Python and its imports. The raylet can start a process in advance
and assigns it to the next actor with the same runtime environment, which is the next worker. That
environment sets a setup hook, `import_modules`, so the process has imported PyTorch and all modules
of the former worker before it is assigned. It takes the memory of an idle process with PyTorch.
"""

import contextlib
import importlib
import logging
import sys
import threading

from .ray_internals import nodes
from .state_directory import state_directory

log = logging.getLogger(__name__)

DELAY_S = 3.0
"""After the start of training, so that the first steps have the CPU."""
KEEP_S = 30 * 24 * 3600
FILE = "modules"
"""Names of the modules that this pod's worker has loaded, in the state directory."""

ENVIRONMENT = {nodes.SETUP_HOOK_ENV: f"{__name__}.import_modules"}
"""Variables of the workers' runtime environment."""


def schedule() -> threading.Timer:
    """Have this node's raylet start a process for the next worker after `DELAY_S`.

    Cancel the timer when training ends.
    """
    timer = threading.Timer(DELAY_S, _start)
    timer.daemon = True
    timer.start()
    return timer


def _start() -> None:
    try:
        names = [name for name in list(sys.modules) if name not in ("__main__", "__mp_main__")]
        (state_directory() / FILE).write_text("\n".join(names))
        nodes.prestart_worker(KEEP_S)
    except Exception as error:  # a restart without it is slower, not wrong
        log.warning("no worker process was prestarted: %s", error)


def import_modules() -> None:
    """Import the modules of the former worker on this node; the setup hook of worker processes."""
    import ray.train.torch  # noqa: F401 - the first worker of a node has no list of modules
    import torch._dynamo  # noqa: F401 - imported by DistributedDataParallel, takes a second

    file = state_directory() / FILE
    for name in file.read_text().splitlines() if file.exists() else ():
        # A module that fails to import fails again where it is used; an error here would end each
        # prestarted process.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
