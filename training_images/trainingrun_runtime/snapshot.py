"""What a checkpoint of the session holds: the objects' state and every rank's random numbers."""

import copy
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

STATE_FILE = "state.pt"


class Stateful(Protocol):
    """A model, an optimizer, a scheduler, a data loader: anything that can be restored."""

    def state_dict(self) -> Mapping[str, Any]:
        """Everything that makes it what it is now."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Become what `state` says."""
        ...


def _bare(thing: Stateful) -> Stateful:
    """Without the wrapper of data parallelism, so that a checkpoint fits any number of workers."""
    return thing.module if isinstance(thing, DistributedDataParallel) else thing


def _copied(value: Any) -> Any:
    """A deep copy in host memory: training goes on while it is written."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(item) for item in value)
    return copy.deepcopy(value)


def _random_state() -> dict[str, Any]:
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": [s.cpu() for s in torch.cuda.get_rng_state_all()]
        if torch.cuda.is_available()
        else [],
        "numpy": [str(kind), [int(k) for k in keys], int(position), int(has_gauss), float(gauss)],  # type: ignore[index]
        "python": random.getstate(),
    }


def _restore_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    version, numbers, gauss_next = state["python"]
    random.setstate((version, tuple(numbers), gauss_next))


def take(objects: Mapping[str, Stateful], rank: int, step: int) -> dict[str, Any]:
    """This rank's part of a checkpoint after `step` steps, as file name -> content.

    Rank 0 has the objects' state, which is the same on every rank; each rank has its own random
    numbers.
    """
    files: dict[str, Any] = {f"random-{rank}.pt": _copied(_random_state())}
    if rank == 0:
        states = {name: _copied(_bare(thing).state_dict()) for name, thing in objects.items()}
        files[STATE_FILE] = {"step": step, "objects": states}
    return files


def write(files: Mapping[str, Any], folder: Path) -> None:
    """Write them into a local folder."""
    for name, content in files.items():
        torch.save(content, folder / name)


def restore(folder: Path, objects: Mapping[str, Stateful], rank: int) -> int:
    """Put the objects and the random numbers back; the steps done by then.

    Raises:
        ValueError: the checkpoint lacks the state of one of the objects.
    """
    saved = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
    missing = sorted(objects.keys() - saved["objects"].keys())
    if missing:
        raise ValueError(
            f"the checkpoint of step {saved['step']} holds no state of {', '.join(missing)}; pass "
            f"the session the objects that it was saved with: {', '.join(saved['objects'])}"
        )
    for name, thing in objects.items():
        _bare(thing).load_state_dict(saved["objects"][name])
    mine = folder / f"random-{rank}.pt"
    if mine.exists():  # a rank that the former world did not have begins with its own seed
        _restore_random_state(torch.load(mine, map_location="cpu", weights_only=True))
    return int(saved["step"])
