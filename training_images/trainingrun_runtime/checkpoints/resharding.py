"""Puts saved tensors into DTensors of this run, whatever ranks and mesh they were saved from.

PyTorch's planner for distributed checkpoints compares the parts that this rank has with those that
were saved, and says what to copy. It is given the parts from the files' own index: a `.metadata`
of `torch.distributed.checkpoint`, which is a pickle, is neither written nor read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from .encoding import NotSavable, encode
from .restored_files import RestoredFiles
from .shard_files import DamagedShards, SavedPart, ShardFiles, Source, require_whole, sources_in
from .sharded_state import (
    Encoded,
    has_description,
    is_description,
    is_sharded,
    mapped,
    read_description,
    require_contiguous,
)
from .stateful_objects import Stateful, holds_shards


class DoesNotFit(ValueError):
    """A saved tensor has no place in this run; a sentence says which and why."""


@dataclass
class _Copies:
    """What to copy where: targets by place, and how to get at the parts of each."""

    targets: dict[str, torch.Tensor] = field(default_factory=dict)
    parts: dict[str, list[SavedPart]] = field(default_factory=dict)
    read: dict[str, Callable[[int], torch.Tensor]] = field(default_factory=dict)


def filled(
    trees: Mapping[str, Any], objects: Mapping[str, Stateful], files: RestoredFiles
) -> Mapping[str, Any]:
    """The saved states, with DTensors of this run in place of the descriptions.

    A tensor that is there already, as a model's parameters are, is overwritten in place: there is
    no second copy of it. A tensor that was saved whole becomes a DTensor where this run has one.

    Args:
        trees: encoded states by the objects' names.
        objects: this run's.
        files: of the checkpoint.

    Raises:
        DamagedShards: a part is missing, or is not what it should be.
        DoesNotFit: this run has no place for one of the tensors, or one of another shape.
    """
    concerned = [
        name for name, tree in trees.items() if has_description(tree) or holds_shards(objects[name])
    ]
    if not concerned:
        return trees
    saved, tensors, copies = sources_in(files), ShardFiles(files), _Copies()
    found = dict(trees)
    for name in concerned:
        places = _places(name, objects[name], trees[name])

        def fill(place: str, value: Any, places: Mapping[str, Any] = places) -> Any:
            target = places.get(place)
            if not is_description(value):
                return _distributed(place, value, target, copies) if is_sharded(target) else value
            return _described(place, value, target, copies, saved, tensors)

        found[name] = mapped(trees[name], name, fill)
    _copy(copies)
    return found


def require_place(name: str, thing: Stateful, state: Encoded) -> None:
    """Make sure that a new optimizer will know how to lay out what is saved of this one.

    Raises:
        NotSavable: it would not.
    """
    if not isinstance(thing, Optimizer) or not state.shards:
        return
    parameters = [p for group in thing.param_groups for p in group["params"]]
    for index, values in state.tree.get("state", {}).items():
        for key, value in values.items():
            if is_description(value) and value["shape"] != list(parameters[index].shape):
                raise NotSavable(
                    f"{name} keeps {key} of shape {tuple(value['shape'])} for a parameter of shape "
                    f"{tuple(parameters[index].shape)}: sharded, it cannot be laid out anew; use "
                    "an optimizer whose state has the parameters' shapes, such as AdamW"
                )


def _places(name: str, thing: Stateful, saved: Any) -> dict[str, torch.Tensor]:
    """This run's tensors by place, and for an optimizer's state, which is made later, new ones."""
    found: dict[str, torch.Tensor] = {}

    def note(place: str, value: Any) -> Any:
        found[place] = value
        return value

    mapped(encode(thing.state_dict(), f"{name}: state_dict()"), name, note)
    if isinstance(thing, Optimizer) and isinstance(saved, dict):
        parameters = [p for group in thing.param_groups for p in group["params"]]
        for index, values in saved.get("state", {}).items():
            if not isinstance(values, dict) or index not in range(len(parameters)):
                continue
            for key, value in values.items():
                place, parameter = f"{name}['state'][{index!r}][{key!r}]", parameters[index]
                if place not in found and _like(value, key, parameter):
                    found[place] = _new(value, parameter)
    return found


def _like(value: Any, key: str, parameter: torch.Tensor) -> bool:
    """Whether an optimizer's value for a parameter is laid out as the parameter is."""
    if is_description(value):
        return True
    return isinstance(value, torch.Tensor) and key != "step" and value.shape == parameter.shape


def _new(value: Any, parameter: torch.Tensor) -> torch.Tensor:
    said = read_description(value) if is_description(value) else value
    # Each element is copied from the checkpoint, or the checkpoint is refused.
    return torch.empty_like(parameter.detach(), dtype=getattr(said, "dtype", None))


def _described(
    place: str,
    description: Mapping[str, Any],
    target: torch.Tensor | None,
    copies: _Copies,
    saved: Mapping[str, list[Source]],
    files: ShardFiles,
) -> torch.Tensor:
    said = read_description(description)
    if said is None:
        raise DamagedShards(f"the checkpoint's {place} is sharded and does not say how")
    key, shape = said.key, said.shape
    if target is None:
        raise DoesNotFit(
            f"the checkpoint has {place}, sharded, and this run has nothing there yet; let its "
            "state_dict() return it before the session is made"
        )
    if shape != tuple(target.shape):
        raise DoesNotFit(
            f"{place} has shape {shape} in the checkpoint and {tuple(target.shape)} in this run; "
            "restore it into the model that it was saved from"
        )
    several = saved.get(key, [])
    if not several and target.numel():
        raise DamagedShards(f"the checkpoint has no part of {key}; it was not written whole")
    if several:
        if several[0].part.shape != shape or said.dtype is not several[0].part.kind:
            raise DamagedShards(f"the parts of {key} are of another tensor than the state says")
        require_whole(key, several)
    copies.parts[place] = [source.part for source in several]
    copies.read[place] = lambda index: files.tensor(key, several[index])
    return _target(place, target, copies)


def _distributed(place: str, whole: torch.Tensor, target: Any, copies: _Copies) -> torch.Tensor:
    """This rank's part of a tensor that was saved whole."""
    if whole.shape != target.shape:
        raise DoesNotFit(
            f"{place} has shape {tuple(whole.shape)} in the checkpoint and {tuple(target.shape)} "
            "in this run; restore it into the model that it was saved from"
        )
    shape = tuple(whole.shape)
    copies.parts[place] = [SavedPart(shape, str(whole.dtype), (0,) * len(shape), shape)]
    copies.read[place] = lambda index: whole
    return _target(place, target, copies)


def _target(place: str, target: torch.Tensor, copies: _Copies) -> torch.Tensor:
    if is_sharded(target):
        require_contiguous(target, place)
    copies.targets[place] = target.detach()
    return copies.targets[place]


def _copy(copies: _Copies) -> None:
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        TensorProperties,
        TensorStorageMetadata,
    )

    metadata = {
        place: TensorStorageMetadata(
            TensorProperties(target.dtype),
            target.size(),
            [
                ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.sizes))
                for part in copies.parts[place]
            ],
        )
        for place, target in copies.targets.items()
    }
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(copies.targets, Metadata(metadata), is_coordinator=False)
    at = {
        place: {part.offsets: index for index, part in enumerate(parts)}
        for place, parts in copies.parts.items()
    }
    with torch.no_grad():
        for item in planner.create_local_plan().items:
            place = item.dest_index.fqn
            part = copies.read[place](at[place][tuple(item.storage_index.offset)])
            for dim, (begin, size) in enumerate(
                zip(item.storage_offsets, item.lengths, strict=True)
            ):
                part = part.narrow(dim, begin, size)
            planner.resolve_tensor(item).copy_(part)
