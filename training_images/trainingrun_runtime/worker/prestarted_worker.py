"""Prestarts processes for Ray's controller, for the first workers and for the next ones.

Most of a start is the start of Python and its imports. A raylet can start a process in advance
and assigns it to the next actor with the same runtime environment, which is the next worker. That
environment sets a setup hook, `import_modules`, so the process has imported PyTorch and all modules
of the former worker before it is assigned. It takes the memory of an idle process with PyTorch. A
node has as many of them as workers.
"""

import contextlib
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import ray

from trainingrun_protocol.contract import WORKER_RESOURCE

from ..imports import BackgroundImports, collector_paused
from ..ray_internals import nodes, prestart, replaced_functions
from ..state_directory import state_directory

log = logging.getLogger(__name__)

DELAY_S = 3.0
"""After the start of training, so that the first steps have the CPU."""
KEEP_S = 30 * 24 * 3600
"""How long the process for the next worker is kept."""
FIRST_KEEP_S = 120
"""How long those of the first worker group are kept, which begins within seconds."""
FIRST_MODULES = ("ray.train.torch", "torch._dynamo")
"""What a worker imports at least; DistributedDataParallel imports `torch._dynamo`."""
FILE = "modules"
"""Names of the modules that this pod's workers have loaded, in the state directory."""
IMPORTED = "imported"
"""It is there, too, once a process has imported them."""
IMPORTED_S = 30.0
"""Longest wait for it: a start before that is slower, not wrong."""
CLAIM_ENV = "TRAININGRUN_CONTROLLER_CLAIM"
"""Path of a file; the process that deletes it imports PyTorch for Ray's controller."""

ENVIRONMENT = {prestart.SETUP_HOOK_ENV: f"{__name__}.import_modules"}
"""Variables of the workers' runtime environment."""


def controller_environment() -> Mapping[str, str]:
    """Variables of the runtime environment of this driver's controller."""
    return {
        prestart.SETUP_HOOK_ENV: f"{__name__}.import_for_controller",
        CLAIM_ENV: str(_claim()),
    }


def _claim() -> Path:
    return state_directory() / f"controller-{os.getpid()}"


def schedule(tell: Callable[[Callable[[], tuple[str, str]]], Any] | None = None) -> threading.Timer:
    """Have this node's raylet start a process for the next worker after `DELAY_S`.

    Cancel the timer when training ends.

    Args:
        tell: called with what makes the same ready on a node that waits, see `wait_here`.
    """
    timer = threading.Timer(DELAY_S, _start, (tell,))
    timer.daemon = True
    timer.start()
    return timer


def _start(tell: Callable[[Callable[[], tuple[str, str]]], Any] | None) -> None:
    try:
        names = [name for name in list(sys.modules) if name not in ("__main__", "__mp_main__")]
        environment = prestart.own_environment()
        if tell is not None:
            tell(partial(wait_here, names, environment))
        _start_here(names, environment)
    except Exception as error:  # a restart without it is slower, not wrong
        log.warning("no worker process was prestarted: %s", error)


def _start_here(modules: Iterable[str], environment: str, number: int = 1) -> None:
    # Renamed into place: a process that another worker of this pod has requested may read it.
    written = state_directory() / f".{FILE}-{os.getpid()}"
    written.write_text("\n".join(modules))
    written.replace(state_directory() / FILE)
    own = ray.get_runtime_context().get_node_id()
    prestart.prestart(nodes.address_of(own), environment, KEEP_S, number)


def wait_here(modules: Sequence[str], environment: str) -> tuple[str, str]:
    """In a task on a node that waits: have its raylet start a process for each worker that it may
    get, and wait a while until one has imported the modules. Where a worker was before, it has left
    such processes.

    Args:
        modules: names of those that a worker has loaded.
        environment: that worker's runtime environment, as Ray writes it.

    Returns:
        The node's Kubernetes node and pod, "" where not known.
    """
    if not (state_directory() / FILE).exists():
        _start_here(modules, environment, nodes.total_on_own_node(WORKER_RESOURCE))
        deadline = time.monotonic() + IMPORTED_S
        while not (state_directory() / IMPORTED).exists() and time.monotonic() < deadline:
            time.sleep(0.2)
    return os.environ.get("NODE_NAME", ""), os.environ.get("POD_NAME", "")


def prestart_all(coordinator: Any, imports: BackgroundImports) -> None:
    """Have the raylets start the processes of the first workers and of Ray's controller.

    For a thread of the driver. A node that joins later gets none: Ray creates its worker as soon
    as it is there.
    """
    try:
        imports.wait("ray.train")
        controller = prestart.extended(
            prestart.own_environment(),
            {**prestart.controller_variables(), **controller_environment()},
        )
        worker = prestart.extended(controller, ENVIRONMENT)
        own = nodes.address_of(ray.get_runtime_context().get_node_id())
        with ThreadPoolExecutor(16) as pool:
            for address, number in nodes.addresses_with(WORKER_RESOURCE).items():
                pool.submit(_prestart_first, address, worker, number)
            # A raylet starts as many processes at once as its node has CPUs, a head often one.
            ray.get(coordinator.commits.remote())
            _claim().touch()
            _prestart_first(own, controller)
    except Exception as error:  # a start without them is slower, not wrong
        log.warning("no process was prestarted: %s", error)


def prestart_joined(numbers: Mapping[str, int]) -> None:
    """In Ray's controller: have the raylets of nodes that have joined start workers' processes.

    Args:
        numbers: how many each starts, by the raylet's address.
    """
    worker = prestart.extended(prestart.own_environment(), ENVIRONMENT)
    for address, number in numbers.items():
        _prestart_first(address, worker, number)


def _prestart_first(address: str, environment: str, number: int = 1) -> None:
    try:
        prestart.prestart(address, environment, FIRST_KEEP_S, number)
    except Exception as error:  # one node that does not answer is no reason to leave out the others
        log.warning("no process was prestarted at %s: %s", address, error)


def import_modules() -> None:
    """Import the modules of the former worker on this node; the setup hook of worker processes."""
    with contextlib.suppress(Exception):  # an error here would end each process before its use
        with collector_paused():
            _import(FIRST_MODULES)
        file = state_directory() / FILE
        if file.exists():
            replaced_functions.refuse_removed()  # before the user's modules take its functions
            names = file.read_text().splitlines()
            if "tf_keras" in names:
                # TensorFlow decides at its import which Keras it has. Ray's TensorflowTrainer sets
                # this variable, but only once the process is a worker.
                os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
            _import(names)
            (file.parent / IMPORTED).touch()
        else:
            threading.Thread(target=_end_if_left_over, args=(file,), daemon=True).start()


def import_for_controller() -> None:
    """Import PyTorch for Ray's controller; the setup hook of its process.

    The actors that the controller creates inherit its environment and need no PyTorch: the claim
    is gone by then, or is on another node.
    """
    with contextlib.suppress(Exception):
        os.unlink(os.environ[CLAIM_ENV])
        with collector_paused():
            _import(["ray.train.torch"])


def _import(names: Iterable[str]) -> None:
    for name in names:
        # A module that fails to import fails again where it is used.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)


def _end_if_left_over(file: Path) -> None:
    """End an idle process of the first worker group that another one took the place of.

    The next worker is to get a process that has imported the modules in `file`.
    """
    while not file.exists():
        time.sleep(0.5)
    # A task of Ray Data that a worker has started inherits the worker's environment, and this hook.
    with contextlib.suppress(OSError):
        if Path("/proc/self/cmdline").read_bytes().startswith(b"ray::IDLE"):
            os._exit(0)
