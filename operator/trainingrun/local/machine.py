"""What this machine provides: accelerators, and values of the run's environment variables."""

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..api.v1alpha1 import RunSpec

_NVIDIA = re.compile(r"nvidia\d+")


class LocalError(Exception):
    """A run cannot continue here; the text is one sentence, fit for a user."""


def devices(spec: RunSpec, device_folder: Path = Path("/dev")) -> tuple[str, ...]:
    """The NVIDIA GPUs that the run's workers share out, as CUDA numbers them; empty for CPU runs.

    Raises:
        LocalError: The run requests accelerators that this machine lacks. CPUs and memory are not
            checked: workers share them, and the run is then only slower.
    """
    wanted = spec.workers.accelerator
    if wanted is None:
        return ()
    if wanted.kind != "nvidia":
        raise LocalError(
            f"workers.accelerator.kind is {wanted.kind}, which needs a cluster; a local run has "
            "CPUs and NVIDIA GPUs only"
        )
    count = sum(1 for entry in device_folder.iterdir() if _NVIDIA.fullmatch(entry.name))
    needed = spec.total_workers * wanted.count
    if count < needed:
        raise LocalError(
            f"the run requests {needed} NVIDIA GPU(s) ({spec.total_workers} worker(s) with "
            f"{wanted.count} each) and this machine has {count}; lower workers.count, or remove "
            "workers.accelerator to train on CPUs"
        )
    return tuple(str(number) for number in range(count))


def memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def variables(spec: RunSpec, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """The run's environment variables; those from a Secret or the like come from this shell.

    Args:
        spec: What the user wants.
        own: The shell's variables; default: this process's.

    Raises:
        LocalError: A variable with valueFrom is not set in the shell.
    """
    own = os.environ if own is None else own
    found = {}
    for variable in spec.training.env:
        if variable.value is not None:
            found[variable.name] = variable.value
        elif variable.name in own:
            found[variable.name] = own[variable.name]
        else:
            raise LocalError(
                f"training.env {variable.name} has valueFrom, which needs a cluster; "
                f"export {variable.name} in this shell"
            )
    return found


def search_paths(
    script: Path | None, variables: Mapping[str, str], own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """$PYTHONPATH and $LD_LIBRARY_PATH of the run: where it finds modules and libraries.

    Modules: the folder of the script, what training.env says, the working directory, this project,
    what the shell says. As in a pod, where what is the image's own comes last.

    Args:
        script: The run's script, if it has one; a relative one is found by Ray.
        variables: The run's own environment variables.
        own: The shell's variables; default: this process's.
    """
    own = os.environ if own is None else own
    roots = [str(script.parent)] if script and script.is_absolute() else []
    roots += [variables.get("PYTHONPATH", ""), str(Path.cwd())]
    for module in ("trainingrun", "trainingrun_runtime"):
        found = importlib.util.find_spec(module)
        if found is not None and found.submodule_search_locations:
            roots.append(str(Path(found.submodule_search_locations[0]).parent))
    libraries = [paths.get("LD_LIBRARY_PATH", "") for paths in (variables, own)]
    return {
        "PYTHONPATH": _joined(*roots, own.get("PYTHONPATH", "")),
        **({"LD_LIBRARY_PATH": _joined(*libraries)} if any(libraries) else {}),
    }


def _joined(*places: str) -> str:
    return os.pathsep.join(filter(None, places))
