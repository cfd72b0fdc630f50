"""Which rank saves which tensor of what all ranks hold alike.

Every rank could save all of it. So each copies, digests and uploads some of the tensors of a large
state, about as many bytes as the others, into its `state-<rank>.safetensors`, and `session.pt` says
in whose file each of them is. Which rank saves which tensor follows from their sizes, which are the
same on all ranks.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from . import state_comparison, tensor_files
from .sharded_state import described, mapped, taken_out
from .tensor_files import STATE_TENSORS, Part

LEAST = 2**16
"""Bytes of a tensor up to which rank 0 saves it."""
LEAST_FILE = 2**24
"""Bytes that are worth a file of their own."""


class Divided(NamedTuple):
    """States of which each rank saves a part."""

    trees: Mapping[str, Any]
    """With descriptions of the tensors, for `session.pt`."""
    tensors: Mapping[int, Mapping[str, Part]]
    """What each rank saves, by rank and by key."""


def divided(
    trees: Mapping[str, Any],
    parameters: Mapping[str, Collection[str]],
    ranks: int,
    leave: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
) -> Divided:
    """Which rank saves which tensor; nothing is copied.

    Args:
        trees: encoded states that are the same on all ranks, by the objects' names.
        parameters: of the models of which rank 0 decides everything else, their parameters' names.
        ranks: how many there are.
        leave: see `taken_out`.
    """
    saved_by = _divided(trees, parameters, ranks) if ranks > 1 else {}
    tensors: dict[int, dict[str, Part]] = {}

    def put(place: str, tensor: torch.Tensor) -> Mapping[str, Any]:
        rank = saved_by.get(place, 0)
        tensors.setdefault(rank, {})[place] = tensor_files.whole(tensor)
        return described(place, tensor, tensor_files.file_name(STATE_TENSORS, rank))

    found = {name: taken_out(tree, name, put, leave) for name, tree in trees.items()}
    return Divided(found, tensors)


def _divided(
    trees: Mapping[str, Any], parameters: Mapping[str, Collection[str]], ranks: int
) -> Mapping[str, int]:
    """The rank that saves each large tensor, by place; rank 0 saves the others."""
    found = {
        place: tensor
        for name, tree in trees.items()
        for place, tensor in _movable(name, tree, parameters.get(name))
    }
    files = min(ranks, sum(tensor.nbytes for tensor in found.values()) // LEAST_FILE)
    if files < 2:
        return {}
    # Over all pods, where there are more ranks than files.
    filled = [(0, number * ranks // files) for number in range(files)]
    saved_by: dict[str, int] = {}
    for place in sorted(found, key=lambda place: (-found[place].nbytes, place)):
        size, rank = heapq.heappop(filled)
        saved_by[place] = rank
        heapq.heappush(filled, (size + found[place].nbytes, rank))
    return saved_by


def _movable(
    name: str, tree: Any, parameters: Collection[str] | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Large tensors that are the same on all ranks, by place."""
    found: dict[str, Any] = {}

    def note(place: str, value: Any) -> Any:
        found[place] = value
        return value

    if parameters is None:
        mapped(tree, name, note)
    else:
        compared, _ = state_comparison.divided(tree, parameters)
        found = {f"{name}.{key}": value for key, value in (compared or {}).items()}
    for place, value in found.items():
        plain = isinstance(value, torch.Tensor) and tensor_files.fits(value)
        if plain and value.nbytes > LEAST:
            yield place, value
