"""Tensors in an encoded state, and those of which each rank holds a part: DTensors.

FSDP2 and tensor parallelism make them. `split` takes them out of an encoded state and leaves a
description of the whole tensor in their place, which is the same on all ranks. Each rank saves the
parts that it holds, see `tensor_files`.
"""

import math
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from . import tensor_files
from .encoding import OPAQUE, TAG, NotSavable, unknown
from .tensor_files import Part

DESCRIBED = "tensor"
"""Tag of the description that stands for a tensor which is in a file of tensors."""


class Encoded(NamedTuple):
    """An object's state in a form that can be saved; tensors are not copied yet."""

    tree: Any
    """What `encoding.encode` returned, with descriptions in place of the DTensors."""
    shards: Mapping[str, Any]
    """The DTensors by place."""
    notes: Mapping[str, Any] = MappingProxyType({})
    """See `restored_objects.notes`."""


class Description(NamedTuple):
    """What stands for a tensor in an encoded state."""

    key: str
    """Its name in the files of tensors."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    file: str | None
    """The file that has it whole; None: the ranks' files have parts of it."""
    order: tuple[int, ...] | None
    """Its dimensions from the outermost one in memory, where that is not their own order."""
    device: str | None
    """The kind of device that had it, of a tensor in a file; None: the CPU."""


def is_sharded(value: object) -> bool:
    """Whether it is a DTensor; without their module, whose import takes 2 s, there is none."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(value, kind)


def is_description(value: object) -> bool:
    """Whether it stands for a tensor in an encoded state."""
    return isinstance(value, dict) and value.get(TAG) == DESCRIBED


def described(key: str, tensor: torch.Tensor, file: str | None = None) -> dict[str, Any]:
    """What stands for a tensor in an encoded state; see `Description`."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    found = {TAG: DESCRIBED, "key": key, "shape": list(tensor.shape), "dtype": dtype}
    if file is not None:
        found["file"] = file
        if not tensor.is_cpu:
            found["device"] = tensor.device.type  # without its number, which differs by rank
        if not tensor.is_contiguous():
            strides = tensor.stride()
            order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
            if tensor.permute(order).is_contiguous():  # as with torch.channels_last
                found["order"] = order
    return found


def read_description(value: Mapping[str, Any]) -> Description | None:
    """What it says; None: it is not one that `described` made.

    Raises:
        UnknownForm: of a type of which this version makes no files.
    """
    read: Any = value.get
    key, shape, dtype, file, order = map(read, ("key", "shape", "dtype", "file", "order"))
    device = read("device")
    kind = _type(dtype) if isinstance(dtype, str) else None
    numbers = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not (isinstance(key, str) and numbers and isinstance(kind, torch.dtype)):
        return None
    if file is not None and not (isinstance(file, str) and tensor_files.is_tensor_file(file)):
        return None
    if order is not None and not (
        isinstance(order, list)
        and all(type(n) is int for n in order)
        and sorted(order) == list(range(len(shape)))
    ):
        return None
    if device is not None and not isinstance(device, str):
        return None
    return Description(key, tuple(shape), kind, file, tuple(order) if order else None, device)


def _type(name: str) -> Any:
    found = getattr(torch, name, None)
    types = tensor_files.TYPES.values()
    if found is None or (isinstance(found, torch.dtype) and found not in types):
        raise unknown(f"files of tensors of torch.{name}")
    return found


def has_shards(tree: Any) -> bool:
    """Whether an encoded state has a part that stands for a DTensor."""
    if is_description(tree):
        return tree.get("file") is None
    inner = tree.values() if isinstance(tree, dict) else tree
    return isinstance(tree, dict | list | tuple) and any(map(has_shards, inner))


def mapped(value: Any, place: str, change: Callable[[str, Any], Any]) -> Any:
    """A copy of an encoded state with each tensor and description replaced by `change(place, it)`.

    Args:
        value: from `encoding.encode`.
        place: what to call it, such as `model`; those inside are `model.weight`, as
            `torch.distributed.checkpoint` names them.
        change: called for each of them.
    """
    if isinstance(value, torch.Tensor) or is_description(value):
        return change(place, value)
    if isinstance(value, dict):
        if value.get(TAG) in OPAQUE:
            return value
        tagged = TAG in value
        return {
            # A tagged dict is a container of its own: its `items` have the container's place.
            key: mapped(item, place if tagged and key == "items" else f"{place}.{key}", change)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(
            mapped(item, f"{place}.{index}", change) for index, item in enumerate(value)
        )
    return value


def entries(tree: Any, name: str) -> list[tuple[str, Any]]:
    """The tensors and descriptions in an encoded state, each with its place; see `mapped`."""
    found: list[tuple[str, Any]] = []

    def note(place: str, value: Any) -> Any:
        found.append((place, value))
        return value

    mapped(tree, name, note)
    return found


def copied(state: Any) -> Any:
    """An encoded state with its tensors in host memory: training continues while it is written."""
    return mapped(state, "", lambda _, it: it if is_description(it) else it.to("cpu", copy=True))


def split(state: Any, name: str, notes: Mapping[str, Any] = MappingProxyType({})) -> Encoded:
    """Take the DTensors out of an encoded state.

    Args:
        state: from `encoding.encode`.
        name: of the object.
        notes: see `Encoded`.

    Raises:
        NotSavable: one of them is laid out in a way that cannot be saved.
    """
    shards: dict[str, Any] = {}
    places: set[str] = set()

    def describe(place: str, value: Any) -> Any:
        if place in places:
            raise NotSavable(f"{place} is in the state twice; give its parts different names")
        places.add(place)
        if not is_sharded(value):
            return value
        require_contiguous(value, place)
        shards[place] = value
        found = described(place, value)
        if not _on_all_ranks(value):
            found["ranks"] = value.device_mesh.size()
        return found

    return Encoded(mapped(state, name, describe), shards, notes)


def taken_out(
    tree: Any,
    name: str,
    put: Callable[[str, torch.Tensor], Mapping[str, Any] | None],
    leave: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
) -> Any:
    """An encoded state with descriptions in place of the tensors that go into a file of tensors.

    Args:
        tree: the state.
        name: of the object.
        put: called with the place of each tensor that such a file can hold; returns what stands
            for it.
        leave: called with the others; returns what stays in the state.
    """

    def change(place: str, value: Any) -> Any:
        if is_description(value):
            return value
        return put(place, value) if tensor_files.fits(value) else leave(value)

    return mapped(tree, name, change)


def own_tree(state: Encoded) -> Any:
    """The tree of an object that differs from rank to rank.

    Ranks of several meshes may use one name for different tensors, as the stages of a pipeline do:
    the keys of such tensors then say of which ranks they are.
    """

    def rename(_: str, value: Any) -> Any:
        return {**value, "key": _own_key(value["key"], state)} if is_description(value) else value

    return mapped(state.tree, "", rename)


def _own_key(place: str, state: Encoded) -> str:
    tensor = state.shards[place]
    if _on_all_ranks(tensor):
        return place
    ranks = sorted(int(rank) for rank in tensor.device_mesh.mesh.flatten())
    return f"{place}@{','.join(map(str, ranks))}"


def _on_all_ranks(tensor: Any) -> bool:
    """Whether all ranks of the run hold the tensor together."""
    return bool(tensor.device_mesh.size() == dist.get_world_size())


def require_contiguous(tensor: Any, place: str) -> None:
    """Make sure that each rank's part of a DTensor is one block of the whole tensor.

    Raises:
        NotSavable: it is not.
    """
    sizes = tensor.device_mesh.shape
    for dim, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            continue
        if placement.is_partial():
            raise NotSavable(
                f"{place} is a DTensor with a Partial placement: no rank has its values; let "
                "state_dict() return it redistributed to Shard or Replicate"
            )
        if type(placement).__name__ != "_StridedShard":
            continue
        # What FSDP2 makes of a dimension that tensor parallelism has split already.
        factor = placement.split_factor
        later = [
            size
            for size, other in zip(sizes[dim + 1 :], tensor.placements[dim + 1 :], strict=True)
            if other.is_shard(placement.dim)
        ]
        if factor != math.prod(later) or tensor.shape[placement.dim] % factor:
            raise NotSavable(
                f"{place} has shape {tuple(tensor.shape)}, of which dimension {placement.dim} is "
                f"not split evenly by tensor parallelism ({tensor.placements}), so that a rank's "
                f"part is no block of it; make the dimension a multiple of {factor}"
            )


def parts(state: Encoded) -> dict[str, Part]:
    """This rank's parts of an object's DTensors, by place; not copied yet.

    Raises:
        NotSavable: a DTensor's local part is no plain tensor, or has another shape than it says.
    """
    if not state.shards:
        return {}
    # Imported here: it takes half a second, and most runs need none of it.
    from torch.distributed.checkpoint.default_planner import create_default_local_save_plan

    found = {}
    for item in create_default_local_save_plan(dict(state.shards), False).items:
        place, tensor = item.index.fqn, state.shards[item.index.fqn]
        chunk, local = item.tensor_data.chunk, tensor.detach().to_local()
        if type(local) is not torch.Tensor or not tensor_files.fits(local):
            raise NotSavable(
                f"{place} is a DTensor of {type(local).__name__} ({local.layout}, {local.dtype}), "
                "which a session cannot save; let state_dict() return DTensors of dense tensors, "
                "of a type that safetensors has"
            )
        if chunk.sizes != local.shape:
            raise NotSavable(
                f"{place} has a part of shape {tuple(local.shape)} on this rank, where its "
                f"placement {tensor.placements} gives {tuple(chunk.sizes)}; split its dimensions "
                "evenly"
            )
        if local.numel():
            found[place] = Part(local, tuple(chunk.offsets), tuple(tensor.shape))
    return found


def parts_to_save(
    state: Encoded, *, own: bool, same_parts: Sequence[int], rank: int
) -> dict[str, Part]:
    """The parts that this rank saves, by key.

    Of ranks that hold the same part, as those of HSDP's replicas do, one saves it. Which one
    follows from its key, so that each of them saves about as much. Of replicas that differ the
    first one is saved.

    Args:
        state: an object's.
        own: whether it differs from rank to rank.
        same_parts: the ranks whose `Fingerprints.layout` is this rank's.
        rank: of this process.
    """
    found = {}
    for place, part in parts(state).items():
        tensor = state.shards[place]
        key = _own_key(place, state) if own else place
        mine, copies = _replica(tensor)
        if own and _on_all_ranks(tensor):
            saves = mine == 0  # a mixture would be the state of no rank
        elif own or _on_all_ranks(tensor):
            saves = zlib.crc32(key.encode()) % copies == mine
        else:
            saves = same_parts[zlib.crc32(key.encode()) % len(same_parts)] == rank
        if saves:
            found[key] = part
    return found


def parts_of_some(state: Encoded) -> dict[str, Part]:
    """Parts of DTensors that are on some ranks alone.

    FSDP2 with tensor parallelism makes them of what tensor parallelism leaves whole: other ranks
    then have the same. The stages of a pipeline have other tensors.
    """
    some = {place: t for place, t in state.shards.items() if not _on_all_ranks(t)}
    return parts(Encoded(None, some))


def replicas(state: Encoded) -> dict[str, Part]:
    """Parts of DTensors of all ranks that other ranks have too, as with HSDP.

    They are alike where each step's gradients were exchanged between the replicas, which
    `set_requires_all_reduce(False)` leaves out.
    """
    found = {
        place: tensor
        for place, tensor in state.shards.items()
        if _on_all_ranks(tensor) and any(one.is_replicate() for one in tensor.placements)
    }
    return parts(Encoded(None, found))


def held_tensor(tensor: Any) -> torch.Tensor:
    """The very tensor that this rank holds: the tensor itself, or its part of a DTensor."""
    found: torch.Tensor = tensor._local_tensor if is_sharded(tensor) else tensor
    return found


def _replica(tensor: Any) -> tuple[int, int]:
    """Which of the ranks with the same part this one is, from 0, and how many they are."""
    mine, copies = 0, 1
    coordinate = tensor.device_mesh.get_coordinate()
    for place, size, placement in zip(
        coordinate, tensor.device_mesh.shape, tensor.placements, strict=True
    ):
        if placement.is_replicate():
            mine, copies = mine * size + place, copies * size
    return mine, copies
