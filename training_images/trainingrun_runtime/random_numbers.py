"""The random numbers of a process, of PyTorch, NumPy and Python: from a seed, or as they were.

With a seed they follow from it and from a place in the training, and from nothing before.
"""

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, SupportsInt

import numpy as np
import torch

from .fsdp_groups import fsdp_groups


def derive(seed: int, *place: int | str) -> int:
    """63 bits that follow from the seed and the place."""
    text = ":".join(map(str, (seed, *place)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class StepRandom:
    """Has a training draw its random numbers from a seed and the place where they are drawn.

    In a step each rank draws its own, as for dropout. Outside of the steps all ranks draw the same:
    a split of the data, or an order of the samples, of which each of them takes a part.

    Args:
        seed: None: the random numbers are left as they are.
        rank: of this process, or one that stands for all that draw the same in a step.
    """

    def __init__(self, seed: SupportsInt | None, rank: int) -> None:
        self._seed = None if seed is None else int(seed)
        self._rank = rank

    @property
    def seeded(self) -> bool:
        """Whether there is a seed."""
        return self._seed is not None

    def begin(self, where: str, step: int, epoch: int, *more: int) -> None:
        """From here on the random numbers follow from this place, outside of the steps."""
        if self._seed is not None:
            begin(derive(self._seed, where, step, epoch, *more))

    def begin_step(self, step: int, epoch: int, place: int | None = None) -> None:
        """From here on they follow from this step and the rank.

        Args:
            step: its number.
            epoch: its number.
            place: the rank that would draw them with all workers, if it is another one.
        """
        self.begin("step", step, epoch, self._rank if place is None else place)


def begin(number: int) -> None:
    """Have PyTorch, NumPy and Python draw from here on what this number stands for."""
    # Not torch.manual_seed: before CUDA is used it takes the call stack apart, each time anew.
    if torch.cuda.is_initialized():
        for generator in torch.cuda.default_generators:
            generator.manual_seed(number)
    _begin_on_cpu(number)


@contextmanager
def borrowed(number: int) -> Iterator[None]:
    """Draw on the CPU what this number stands for, and what was to be drawn before afterwards."""
    former = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        _begin_on_cpu(number)
        yield
    finally:
        torch.set_rng_state(former[0])
        np.random.set_state(former[1])
        random.setstate(former[2])


def _begin_on_cpu(number: int) -> None:
    torch.default_generator.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)


def current() -> dict[str, Any]:
    """The state of all generators, in a form that `torch.save` writes; tensors are not copied."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": [s.cpu() for s in torch.cuda.get_rng_state_all()]
        if torch.cuda.is_available()
        else [],
        "numpy": [str(kind), [int(k) for k in keys], int(position), int(has_gauss), float(gauss)],
        "python": random.getstate(),
    }


def put_back(state: Mapping[str, Any]) -> None:
    """Have all of them draw what they would have drawn after `current`.

    GPUs are left alone where there is another number of them.
    """
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    version, numbers, gauss_next = state["python"]
    random.setstate((version, tuple(numbers), gauss_next))


def first_of_group(objects: Iterable[Any], rank: int) -> int:
    """The lowest of the ranks that share this rank's matrices; the rank itself without such.

    These ranks compute the same of the same samples, but for their parts of the matrices. With
    dropout of their own, what each of them holds whole, such as a bias, would differ from then on.

    Args:
        objects: of the session; models among them are looked at.
        rank: of this process.
    """
    groups = (_group(thing) for thing in objects if isinstance(thing, torch.nn.Module))
    return min((min(group) for group in groups if group), default=rank)


def _group(model: torch.nn.Module) -> frozenset[int]:
    """The ranks over which a parameter is split, other than by FSDP2; with this one, if any."""
    of_fsdp = set(_ranks_of_fsdp(model))
    found: frozenset[int] = frozenset()
    for parameter in model.parameters():
        mesh = getattr(parameter, "device_mesh", None)  # of a DTensor
        if mesh is None or mesh.get_coordinate() is None:
            continue
        split = {
            dim
            for dim, placement in enumerate(parameter.placements)
            if not placement.is_replicate()
            and not any(_along(mesh, {dim}) <= ranks for ranks in of_fsdp)
        }
        if split:
            found |= _along(mesh, split)
    return found


def _ranks_of_fsdp(model: torch.nn.Module) -> Iterator[frozenset[int]]:
    """For each dimension of FSDP2's meshes the ranks along it, this one among them."""
    for group in fsdp_groups(model):
        mesh = group.mesh_info.mesh
        yield from (_along(mesh, {dim}) for dim in range(mesh.ndim))


def _along(mesh: Any, dims: set[int]) -> frozenset[int]:
    """The ranks whose place on the mesh differs from this one's in these dimensions alone."""
    place = tuple(
        slice(None) if dim in dims else at for dim, at in enumerate(mesh.get_coordinate())
    )
    return frozenset(int(rank) for rank in mesh.mesh[place].flatten())
