"""Files of what all ranks hold alike: `state.pt` and, of a large state, also `state-<rank>.pt`.

Every rank could save all of it. So each copies, digests and uploads some of the tensors, about as
many bytes as the others, and `state.pt` says in whose file each of them is. Which rank saves which
tensor follows from their sizes, which are the same on all ranks.
"""

import heapq
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from . import state_comparison
from .encoding import TAG
from .restored_files import RestoredFiles
from .shard_files import DamagedShards, opened
from .sharded_state import mapped

ELSEWHERE = "elsewhere"
"""Tag of what stands in `state.pt` for a tensor in another rank's file."""
LEAST = 2**16
"""Bytes of a tensor up to which it stays in `state.pt`."""
LEAST_FILE = 2**24
"""Bytes that are worth a file of their own."""


class Divided(NamedTuple):
    """States of which each rank saves a part."""

    trees: Mapping[str, Any]
    """Of rank 0, with references to what others save."""
    tensors: Mapping[int, Mapping[str, torch.Tensor]]
    """What the other ranks save, by rank and by key."""


def state_file(rank: int) -> str:
    """Name of the file with the tensors that a rank other than 0 saves for all."""
    return f"state-{rank}.pt"


def divided(
    trees: Mapping[str, Any], parameters: Mapping[str, Collection[str]], ranks: int
) -> Divided:
    """Which rank saves which tensor; nothing is copied.

    Args:
        trees: encoded states that are the same on all ranks, by the objects' names.
        parameters: of the models of which rank 0 decides everything else, their parameters' names.
        ranks: how many there are.
    """
    found = {
        place: tensor
        for name, tree in trees.items()
        for place, tensor in _movable(name, tree, parameters.get(name))
    }
    files = min(ranks, sum(tensor.nbytes for tensor in found.values()) // LEAST_FILE)
    if files < 2:
        return Divided(trees, {})
    # Over all pods, where there are more ranks than files.
    filled = [(0, number * ranks // files) for number in range(files)]
    saved_by: dict[str, int] = {}
    for place in sorted(found, key=lambda place: (-found[place].nbytes, place)):
        size, rank = heapq.heappop(filled)
        saved_by[place] = rank
        heapq.heappush(filled, (size + found[place].nbytes, rank))

    def refer(place: str, value: Any) -> Any:
        rank = saved_by.get(place, 0)
        if rank == 0:
            return value
        dtype = str(value.dtype).removeprefix("torch.")
        return {TAG: ELSEWHERE, "rank": rank, "shape": list(value.shape), "dtype": dtype}

    tensors: dict[int, dict[str, torch.Tensor]] = {}
    for place, rank in saved_by.items():
        if rank != 0:
            tensors.setdefault(rank, {})[place] = found[place]
    return Divided({name: mapped(tree, name, refer) for name, tree in trees.items()}, tensors)


def whole(name: str, tree: Any, files: RestoredFiles) -> Any:
    """The encoded state of an object, with all of its tensors.

    Args:
        name: of the object.
        tree: as `state.pt` has it.
        files: of the checkpoint.

    Raises:
        DamagedShards: a tensor is not in the file that should have it.
    """
    known: dict[int, Any] = {}

    def tensor(place: str, value: Any) -> Any:
        return _read(place, value, files, known) if _is_reference(value) else value

    return mapped(tree, name, tensor, _is_reference)


def _is_reference(value: object) -> bool:
    return isinstance(value, dict) and value.get(TAG) == ELSEWHERE


def _read(
    place: str, reference: Mapping[str, Any], files: RestoredFiles, known: dict[int, Any]
) -> torch.Tensor:
    rank = reference.get("rank")
    name = state_file(rank) if type(rank) is int else ""
    if type(rank) is not int or name not in files.names():
        raise DamagedShards(f"the checkpoint lacks the file with {place}; it was not written whole")
    if rank not in known:
        known[rank] = opened(files, name)
    content = known[rank]
    found: Any = content.get(place) if isinstance(content, dict) else None
    if (
        type(found) is not torch.Tensor
        or found.layout is not torch.strided
        or list(found.shape) != reference.get("shape")
        or str(found.dtype) != f"torch.{reference.get('dtype')}"
    ):
        raise DamagedShards(f"{name} does not hold {place} as state.pt says")
    return found


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
        found = {f"{name}[{key!r}]": value for key, value in (compared or {}).items()}
    for place, value in found.items():
        # A sparse one has no size.
        plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
        if plain and not value.is_quantized and value.nbytes > LEAST:
            yield place, value
