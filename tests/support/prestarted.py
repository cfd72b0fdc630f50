"""The worker processes of Ray on this machine whose environment sets one of our setup hooks."""

from pathlib import Path
from typing import NamedTuple

from trainingrun_runtime.ray_internals.prestart import SETUP_HOOK_ENV
from trainingrun_runtime.worker import prestarted_worker


class Process(NamedTuple):
    """One of them."""

    pid: int
    title: str
    """Such as `ray::IDLE` or `ray::RayTrainWorker.run_train_fn`."""
    hook: str
    """Name of the hook in `prestarted_worker`."""


def processes(temporary: str) -> list[Process]:
    """Those of the Ray whose files are below a folder, of which `temporary` is part of the path."""
    found = []
    prefix = f"{SETUP_HOOK_ENV}={prestarted_worker.__name__}."
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            title = (entry / "cmdline").read_bytes().decode(errors="replace").strip("\0 ")
        except OSError:  # no process, or one that has ended
            continue
        hooks = [line.removeprefix(prefix) for line in environment if line.startswith(prefix)]
        if hooks and any(temporary in line for line in environment):
            found.append(Process(int(entry.name), title, hooks[0]))
    return found
