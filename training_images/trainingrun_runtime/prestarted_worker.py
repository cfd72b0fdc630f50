"""Prestarts processes for the first worker group, and one on each worker's node for the next group.

Most of a start is the start of Python and its imports. A raylet can start a process in advance
and assigns it to the next actor with the same runtime environment, which is the next worker. That
environment sets a setup hook, `import_modules`, so the process has imported PyTorch and all modules
of the former worker before it is assigned. It takes the memory of an idle process with PyTorch.
"""

import contextlib
import importlib
import logging
import os
import sys
import threading
from typing import Any

import ray

from trainingrun.api.contract import WORKER_RESOURCE

from .imports import BackgroundImports, collector_disabled
from .ray_internals import nodes, prestart
from .state_directory import state_directory

log = logging.getLogger(__name__)

DELAY_S = 3.0
"""After the start of training, so that the first steps have the CPU."""
KEEP_S = 30 * 24 * 3600
FIRST_KEEP_S = 120
"""For processes of the first worker group, which begins within seconds."""
FIRST_MODULES = ("ray.train.torch", "torch._dynamo")
"""What a worker imports at least; DistributedDataParallel imports `torch._dynamo`."""
FILE = "modules"
"""Names of the modules that this pod's worker has loaded, in the state directory."""

CONTROLLER_ENVIRONMENT = {prestart.SETUP_HOOK_ENV: f"{__name__}.import_for_controller"}
ENVIRONMENT = {prestart.SETUP_HOOK_ENV: f"{__name__}.import_modules"}
"""Variables of the workers' runtime environment."""


def schedule() -> threading.Timer:
    """Have this node's raylet start a process for the next worker after `DELAY_S`.

    Cancel the timer when training ends.
    """
    timer = threading.Timer(DELAY_S, _start)
    timer.daemon = True
    timer.start()
    return timer


def _own_node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _start() -> None:
    try:
        names = [name for name in list(sys.modules) if name not in ("__main__", "__mp_main__")]
        (state_directory() / FILE).write_text("\n".join(names))
        prestart.prestart(_own_node(), prestart.own_environment(), KEEP_S)
    except Exception as error:  # a restart without it is slower, not wrong
        log.warning("no worker process was prestarted: %s", error)


def prestart_all(coordinator: Any, imports: BackgroundImports) -> None:
    """Have the raylets start the processes of the first workers and of Ray's controller.

    For a thread of the driver. A node that joins later gets none: Ray creates its worker as soon
    as it is there.
    """
    try:
        imports.wait("ray.train")
        controller = prestart.extended(
            prestart.own_environment(),
            {**prestart.controller_variables(), **CONTROLLER_ENVIRONMENT},
        )
        worker = prestart.extended(controller, ENVIRONMENT)
        for node in nodes.nodes_with(WORKER_RESOURCE):
            prestart.prestart(node, worker, FIRST_KEEP_S)
        # A raylet starts as many processes at once as its node has CPUs, a head often one.
        ray.get(coordinator.commits.remote())
        prestart.prestart(_own_node(), controller, FIRST_KEEP_S)
    except Exception as error:  # a start without them is slower, not wrong
        log.warning("no process was prestarted: %s", error)


def import_modules() -> None:
    """Import the modules of the former worker on this node; the setup hook of worker processes."""
    with collector_disabled():
        file = state_directory() / FILE
        modules = file.read_text().splitlines() if file.exists() else ()
        for name in (*FIRST_MODULES, *modules):
            # A module that fails to import fails again where it is used; an error here would end
            # each prestarted process.
            with contextlib.suppress(Exception, SystemExit):
                importlib.import_module(name)


def import_for_controller() -> None:
    """Import PyTorch in the job's first process; the setup hook of Ray's controller.

    The actors that the controller creates inherit its environment and need no PyTorch.
    """
    first = state_directory() / f"controller-{os.environ.get('RAY_JOB_ID', '')}"
    with collector_disabled():
        importlib.import_module("ray.train")
        with contextlib.suppress(FileExistsError):
            first.touch(exist_ok=False)
            importlib.import_module("ray.train.torch")
