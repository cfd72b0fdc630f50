"""What this machine provides: accelerators, and values of the run's environment variables."""

import importlib.util
import itertools
import os
import re
import site
import sys
from collections.abc import Mapping
from pathlib import Path

from trainingrun_protocol.variable_references import with_variables

from ..api.errors import RunError
from ..api.v1alpha1 import RunSpec
from .terminal_text import gib

_NVIDIA = re.compile(r"nvidia\d+")


class LocalError(RunError):
    """A run cannot begin or go on on this machine."""


def devices(
    spec: RunSpec, device_folder: Path = Path("/dev"), own: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The NVIDIA GPUs that the run's workers share out, as CUDA numbers them; empty for CPU runs.

    Where $CUDA_VISIBLE_DEVICES is set, they are those that it leaves, by the names that it has.

    Args:
        spec: What the user wants.
        device_folder: Where the machine's devices are.
        own: The shell's variables; default: this process's.

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
    found, has = tuple(map(str, range(count))), f"this machine has {count}"
    shown = (os.environ if own is None else own).get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        # CUDA ends the list at the first that is no device, such as -1.
        names = (name.strip() for name in shown.split(","))
        found = tuple(itertools.takewhile(lambda name: name and not name.startswith("-"), names))
        has = f"CUDA_VISIBLE_DEVICES={shown} leaves it {len(found)}"
    needed = spec.total_workers * wanted.count
    if len(found) < needed:
        raise LocalError(
            f"the run requests {needed} NVIDIA GPU(s) ({spec.total_workers} worker(s) with "
            f"{wanted.count} each) and {has}; lower workers.count, or remove "
            "workers.accelerator to train on CPUs"
        )
    return found


def memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def variables(
    spec: RunSpec, own: Mapping[str, str] | None = None, before: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The run's environment variables; those from a Secret or the like come from this shell.

    As in a pod, `$(NAME)` in a value is the variable of that name before it, or stays.

    Args:
        spec: What the user wants.
        own: The shell's variables; default: this process's.
        before: What every process of the run has, and a value may name.

    Raises:
        LocalError: A variable with valueFrom is not set in the shell.
    """
    own = os.environ if own is None else own
    found: dict[str, str] = {}
    for variable in spec.training.env:
        if variable.value is not None:
            found[variable.name] = with_variables(variable.value, {**(before or {}), **found})
        elif variable.name in own:
            found[variable.name] = own[variable.name]
        else:
            raise LocalError(
                f"training.env {variable.name} has valueFrom, which needs a cluster; "
                f"export {variable.name} in this shell"
            )
    return found


def search_paths(
    script: Path | None,
    variables: Mapping[str, str],
    own: Mapping[str, str] | None = None,
    beside: Path | None = None,
) -> dict[str, str]:
    """$PYTHONPATH and $LD_LIBRARY_PATH of the run: where it finds modules and libraries.

    Modules: the folder of the script, what training.env says, the working directory, the folder of
    the run's file, this project where it is not installed among the packages, what the shell says.
    As in a pod, where what is the image's own comes last.

    Args:
        script: The run's script, if it has one; a relative one is found by Ray.
        variables: The run's own environment variables.
        own: The shell's variables; default: this process's.
        beside: The folder of the run's file; None: it came by standard input.

    Raises:
        LocalError: The path of a folder has the character that separates two of them.
    """
    own = os.environ if own is None else own
    roots = [importable(script.parent)] if script and script.is_absolute() else []
    roots += [variables.get("PYTHONPATH", ""), importable(Path.cwd())]
    roots += [importable(beside)] if beside is not None and beside != Path.cwd() else []
    for module in ("trainingrun", "trainingrun_runtime"):
        found = importlib.util.find_spec(module)
        if found is not None and found.submodule_search_locations:
            root = Path(found.submodule_search_locations[0]).parent
            # In front, the packages would hide modules of the shell's path and of Python itself.
            if not _of_packages(root):
                roots.append(str(root))
    libraries = [paths.get("LD_LIBRARY_PATH", "") for paths in (variables, own)]
    return {
        "PYTHONPATH": _joined(*roots, own.get("PYTHONPATH", "")),
        **({"LD_LIBRARY_PATH": _joined(*libraries)} if any(libraries) else {}),
    }


def _of_packages(folder: Path) -> bool:
    """Whether every process of this Python finds modules there, after its own."""
    places = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    return folder.resolve() in {Path(place).resolve() for place in places}


def importable(folder: Path) -> str:
    """The folder as PYTHONPATH has it.

    Raises:
        LocalError: Its path has the character that separates two of them.
    """
    if os.pathsep in str(folder):
        raise LocalError(
            f"no module can be imported from {folder}, since PYTHONPATH is split at each "
            f"{os.pathsep}; rename that folder, or use another one"
        )
    return str(folder)


_IN_LOCAL_WORDS = (
    (
        re.compile(r"workers\.resources\.memory|not that much memory"),
        "workers.resources.memory limits nothing in a local run: this machine has {memory} for all "
        "ranks",
    ),
    (
        re.compile(r"\bimage\b"),
        "in a local run the image is this Python, {prefix}: install a package there with pip; your "
        "own modules are found beside the run's file, in the working directory and on PYTHONPATH",
    ),
    (
        re.compile(r"mount what is there by volumes"),
        "in a local run the files are those of this machine, and paths are those that you see",
    ),
    (
        re.compile(r"ephemeral|\bdisk is full"),
        "in a local run the disks are those of this machine: free space below /tmp and in the "
        "run's folder",
    ),
    (
        re.compile(r"sharedMemory"),
        "workers.resources.sharedMemory sets nothing in a local run: /dev/shm is that of this "
        "machine",
    ),
    (
        re.compile(r"credentialsSecret"),
        "in a local run credentials are those of this shell's environment, such as "
        "AWS_ACCESS_KEY_ID",
    ),
    (
        re.compile(r"\bpods? (?:itself|reach)"),
        "a local run has no pods: localhost and the network are those of this machine",
    ),
)
"""What a sentence is about that was written for pods, and what that is on this machine."""


def in_local_words(sentence: str) -> list[str]:
    """What a sentence for runs in a cluster means on this machine, a sentence for each thing."""
    here = {"memory": gib(memory_bytes()), "prefix": sys.prefix}
    return [meant.format(**here) for about, meant in _IN_LOCAL_WORDS if about.search(sentence)]


def _joined(*places: str) -> str:
    return os.pathsep.join(filter(None, places))
