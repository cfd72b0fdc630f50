"""Prestarts processes for Ray's controller, for the first workers and for the next ones, and for
the actor by which the ranks of a group wait for each other.

Most of a start is the start of Python and its imports. A raylet can start a process in advance
and assigns it to the next actor with the same runtime environment, which is the next worker. That
environment sets a setup hook, `import_modules`, so the process has imported what is in `MODULES`
before it is assigned. It takes the memory of an idle process with PyTorch. A node has as many of
them as workers.

Only a rank has its variables, its folder and its devices, and a module may read them at its import.
So the user's modules, and packages that are neither in `MODULES` nor in `PACKAGES`, are imported by
the rank alone, in each start: scikit-learn takes 0.8 s of a core.
"""

import contextlib
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import ray

from trainingrun_protocol.contract import WORKER_RESOURCE

from ..imports import BackgroundImports, collector_paused
from ..ray_internals import nodes, prestart, replaced_functions
from ..state_directory import state_directory

log = logging.getLogger(__name__)

MODULES = (
    # Reads OMP_NUM_THREADS when it is loaded, as PyTorch does; see `THREADS_ENV`.
    "numpy",
    # Of devices it reads nothing before they are first used.
    "torch",
    # Reads settings of the compiler, and the folder for its debug output, which are the pod's.
    # DistributedDataParallel imports it.
    "torch._dynamo",
    # Reads settings of Ray, which are the pod's; what it knows of a rank it is told.
    "ray.train.torch",
    # As ray.train; `replaced_functions` imports it on each rank.
    "ray.tune",
    # This package reads its environment in functions alone.
    "trainingrun_runtime.session.session",
    "trainingrun_runtime.worker.training_function",
)
"""What a prestarted process imports, each with the reason why the rank may get it from another
time: a test looks at what they read. Nothing else is imported ahead of a rank's environment."""

PACKAGES = (
    *("accelerate", "huggingface_hub", "joblib", "pandas", "scipy", "sklearn", "threadpoolctl"),
    *("tokenizers", "transformers", "xgboost"),
)
"""Packages of which it imports what a rank has imported before it: they read settings of the pod
alone, which the same test looks at, and the number of threads, which is known (`THREADS_ENV`).
Lightning is none of them: it takes its rank from the environment when it is imported."""
PACKAGES_FILE = "packages"
"""In the state directory: names of these modules, a line each, in the order of their imports."""

DELAY_S = 3.0
"""After the start of training, so that the first steps have the CPU."""
KEEP_S = 30 * 24 * 3600
"""How long a process for the next worker group is kept."""
CONTROLLER_KEEP_S = 120
"""How long that of the controller is kept, which begins within seconds."""
IMPORTED = "imported"
"""In the state directory once a process of this pod has imported `MODULES`."""
IMPORTED_S = 30.0
"""Longest wait for it: a start before that is slower, not wrong."""
CLAIM_ENV = "TRAININGRUN_CONTROLLER_CLAIM"
"""Path of a file; the process that deletes it imports PyTorch for Ray's controller."""
THREADS_ENV = "TRAININGRUN_WORKER_THREADS"
"""CPUs of a worker, which Ray writes into OMP_NUM_THREADS once a process is one: too late for what
is loaded by then. Workers have it from their controller."""

ENVIRONMENT = {prestart.SETUP_HOOK_ENV: f"{__name__}.import_modules"}
"""Variables of the workers' runtime environment."""


def controller_environment(resources: Mapping[str, float]) -> Mapping[str, str]:
    """Variables of the runtime environment of this driver's controller.

    Args:
        resources: of a worker, as Ray counts them.
    """
    return {
        THREADS_ENV: str(max(int(resources.get("CPU", 1)), 1)),  # as Ray, `ray/_private/utils.py`
        prestart.SETUP_HOOK_ENV: f"{__name__}.import_for_controller",
        CLAIM_ENV: str(_claim()),
    }


def _claim() -> Path:
    return state_directory() / f"controller-{os.getpid()}"


def schedule_beside_controller() -> None:
    """In Ray's controller: have its raylet start the process of the next `SynchronizationActor`.

    Ray makes one for each worker group. Without a process for it, all ranks wait at their first
    exchange, which is about the checkpoint, until one has started and imported Ray Train.
    """
    timer = threading.Timer(DELAY_S, _start_beside_controller)
    timer.daemon = True
    timer.start()


def _start_beside_controller() -> None:
    try:
        if not _waiting(f"{__name__}.import_for_controller"):
            own = nodes.address_of(ray.get_runtime_context().get_node_id())
            prestart.prestart(own, prestart.own_environment(), KEEP_S)
    except Exception as error:  # the next group starts without it, later
        log.warning("no process was prestarted for the next worker group: %s", error)


def schedule(tell: Callable[[Callable[[], tuple[str, str]]], Any] | None = None) -> threading.Timer:
    """Have this node's raylet start the processes of the next workers after `DELAY_S`.

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
        environment, packages = prestart.own_environment(), _imported_packages()
        if tell is not None:
            tell(partial(wait_here, environment, packages))
        _start_here(environment, packages)
    except Exception as error:  # a restart without it is slower, not wrong
        log.warning("no worker process was prestarted: %s", error)


def _imported_packages() -> list[str]:
    return [name for name in [*sys.modules] if name.partition(".")[0] in PACKAGES]


def _start_here(environment: str, packages: Iterable[str]) -> None:
    """Have this node's raylet start what is lacking until a process waits for each worker."""
    file = state_directory() / PACKAGES_FILE
    written = file.with_name(f"{file.name}-{os.getpid()}")
    written.write_text("\n".join(packages))
    written.replace(file)  # each rank of the node does, and a process may read it meanwhile
    lacking = nodes.total_on_own_node(WORKER_RESOURCE)
    lacking -= _waiting(ENVIRONMENT[prestart.SETUP_HOOK_ENV])
    if lacking > 0:
        own = ray.get_runtime_context().get_node_id()
        prestart.prestart(nodes.address_of(own), environment, KEEP_S, lacking)


def _waiting(hook: str) -> int:
    """How many processes of this node with that setup hook wait for an actor, as far as that can be
    seen.

    Where the first actors got others than those that were prestarted for them, these wait.
    """
    count = 0
    for process in psutil.Process(os.getppid()).children():  # of the raylet
        with contextlib.suppress(psutil.Error):
            idle = process.cmdline()[:1] == ["ray::IDLE"]
            count += idle and process.environ().get(prestart.SETUP_HOOK_ENV) == hook
    return count


def wait_here(environment: str, packages: Iterable[str]) -> tuple[str, str]:
    """In a task on a node that waits: have its raylet start a process for each worker that it may
    get, and wait a while until one has imported `MODULES`.

    Args:
        environment: a worker's runtime environment, as Ray writes it.
        packages: what a rank has imported of `PACKAGES`.

    Returns:
        The node's Kubernetes node and pod, "" where not known.
    """
    _start_here(environment, packages)
    deadline = time.monotonic() + IMPORTED_S
    while not (state_directory() / IMPORTED).exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    return os.environ.get("NODE_NAME", ""), os.environ.get("POD_NAME", "")


def prestart_all(
    coordinator: Any, imports: BackgroundImports, resources: Mapping[str, float]
) -> None:
    """Have the raylets start the processes of the first workers and of Ray's controller.

    For a thread of the driver. A node that joins later gets none: Ray creates its worker as soon
    as it is there.

    Args:
        coordinator: of the attempt.
        imports: of the driver.
        resources: of a worker, as Ray counts them.
    """
    try:
        imports.wait("ray.train")
        controller = prestart.extended(
            prestart.own_environment(),
            {**prestart.controller_variables(), **controller_environment(resources)},
        )
        worker = prestart.extended(controller, ENVIRONMENT)
        own = nodes.address_of(ray.get_runtime_context().get_node_id())
        with ThreadPoolExecutor(16) as pool:
            for address, number in nodes.addresses_with(WORKER_RESOURCE).items():
                pool.submit(_prestart, address, worker, KEEP_S, number)
            # A raylet starts as many processes at once as its node has CPUs, a head often one.
            ray.get(coordinator.commits.remote())
            _claim().touch()
            _prestart(own, controller, CONTROLLER_KEEP_S)
            # Another one for the first worker group's `SynchronizationActor`. The raylet would drop
            # a request for both.
            deadline = time.monotonic() + IMPORTED_S
            while _claim().exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            _prestart(own, controller, CONTROLLER_KEEP_S)
    except Exception as error:  # a start without them is slower, not wrong
        log.warning("no process was prestarted: %s", error)


def prestart_joined(numbers: Mapping[str, int]) -> None:
    """In Ray's controller: have the raylets of nodes that have joined start workers' processes.

    Args:
        numbers: how many each starts, by the raylet's address.
    """
    worker = prestart.extended(prestart.own_environment(), ENVIRONMENT)
    for address, number in numbers.items():
        _prestart(address, worker, KEEP_S, number)


def _prestart(address: str, environment: str, keep_s: float, number: int = 1) -> None:
    try:
        prestart.prestart(address, environment, keep_s, number)
    except Exception as error:  # one node that does not answer is no reason to leave out the others
        log.warning("no process was prestarted at %s: %s", address, error)


def import_modules() -> None:
    """Import `MODULES` and what is noted of `PACKAGES`; the setup hook of worker processes."""
    with contextlib.suppress(Exception):  # an error here would end each process before its use
        if THREADS_ENV in os.environ:
            os.environ.setdefault("OMP_NUM_THREADS", os.environ[THREADS_ENV])
        with collector_paused():
            _import(MODULES)
            _import(_noted_packages())
            # Before the user's modules take its functions.
            replaced_functions.refuse_removed()
        (state_directory() / IMPORTED).touch()


def _noted_packages() -> list[str]:
    try:
        noted = (state_directory() / PACKAGES_FILE).read_text().split()
    except OSError:  # of the first workers no rank was before them
        return []
    return [name for name in noted if name.partition(".")[0] in PACKAGES]


def import_for_controller() -> None:
    """Import PyTorch for Ray's controller; the setup hook of its process.

    The actors that the controller creates inherit its environment, and need Ray Train alone: the
    claim is gone by then, or is on another node.
    """
    with contextlib.suppress(Exception), collector_paused():
        module = "ray.train"
        with contextlib.suppress(OSError):
            os.unlink(os.environ[CLAIM_ENV])
            module = "ray.train.torch"
        _import([module])


def _import(names: Iterable[str]) -> None:
    for name in names:
        # A module that fails to import fails again where it is used.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
