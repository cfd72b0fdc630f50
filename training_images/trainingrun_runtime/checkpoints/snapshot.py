"""What a checkpoint of the session holds: the objects' state and every rank's own numbers.

`state.pt` has what all ranks share, from rank 0, but for tensors that other ranks save
(`state_files`); `random-<rank>.pt` has what one rank alone has: its random numbers, and the state
of every object that differs from rank to rank. Of tensors that the ranks hold in parts, these have
a description; the parts are in `shard_files`.
"""

import io
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from . import random_state, resharding, shard_files, sharded_state, state_files
from .encoding import TAG, NotSavable, decode, encode
from .fetching import STATE_FILE
from .restored_files import RestoredFiles
from .sharded_state import Encoded
from .staging import Staging
from .state_comparison import Comparison
from .stateful_objects import Stateful

_REASON = 200
"""Characters of PyTorch's own text in an error."""


def rank_file(rank: int) -> str:
    """Name of the file with what one rank alone has."""
    return f"random-{rank}.pt"


@dataclass(frozen=True)
class Position:
    """How far the training is."""

    step: int = 0
    """Steps done."""
    epoch: int = 0
    """Epochs done, where the training counts them."""
    epoch_began: int = 0
    """Steps done when the epoch under way began."""
    stop_at: int | None = None
    """Steps after which the ranks agreed to end; none: at the loop's own end."""
    left: tuple[int, ...] = ()
    """Ends of the loops that were left before it."""


def encoded(objects: Mapping[str, Stateful], names: Collection[str]) -> dict[str, Encoded]:
    """The states of the named objects in a form that can be saved; tensors are not copied yet.

    Raises:
        NotSavable: one of them holds something that no checkpoint can hold.
    """
    found = {}
    for name, thing in objects.items():
        if name in names:
            state = encode(thing.state_dict(), f"{name}: state_dict()")
            found[name] = sharded_state.split(state, name)
            resharding.require_place(name, thing, found[name])
    return found


def try_out(states: Mapping[str, Encoded]) -> None:
    """Write the encoded states without their tensors' values and read them back, in memory.

    Raises:
        NotSavable: one of them cannot be read back.
    """
    for name, state in states.items():
        sharded_state.parts(state)
        file = io.BytesIO()
        torch.save(_hollow(state.tree), file)
        file.seek(0)
        try:
            decode(_without_descriptions(torch.load(file, weights_only=True)))
        except Exception as error:
            line = str(error).partition("\n")[0]
            raise NotSavable(
                f"{name}: its state cannot be read back from a checkpoint ({line}); let "
                "state_dict() return numbers, text, lists, dicts, arrays and tensors"
            ) from error


def _hollow(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.new_empty(0, device="cpu") if state.layout is torch.strided else None
    if isinstance(state, dict):
        if state.get(TAG) == "array":
            return None
        return {key: _hollow(item) for key, item in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_hollow(item) for item in state)
    return state


def _without_descriptions(tree: Any) -> Any:
    return sharded_state.mapped(
        tree, "", lambda _, value: None if sharded_state.is_description(value) else value
    )


def take(
    states: Mapping[str, Encoded],
    comparison: Comparison,
    position: Position,
    rank: int,
    world_size: int,
    staging: Staging | None = None,
) -> dict[str, Any]:
    """This rank's part of a checkpoint, as file name -> content, copied to host memory.

    Args:
        states: what `encoded` returned.
        comparison: of the ranks' states.
        position: how far the training is.
        rank: of this process.
        world_size: how many ranks there are.
        staging: memory of the former checkpoint, which is overwritten. None: new memory.
    """
    staging = staging or Staging()
    files = _placed(states, comparison, position, rank, world_size, staging)
    staging.copy()
    return files


def make_memory(
    states: Mapping[str, Encoded],
    comparison: Comparison,
    rank: int,
    world_size: int,
    staging: Staging,
) -> None:
    """Begin to make the memory for the first checkpoint, beside training; see `take`."""
    _placed(states, comparison, Position(), rank, world_size, staging)
    staging.make_memory()


def _placed(
    states: Mapping[str, Encoded],
    comparison: Comparison,
    position: Position,
    rank: int,
    world_size: int,
    staging: Staging,
) -> dict[str, Any]:
    """The files, with places for the tensors' copies."""
    own = comparison.own
    staging.begin()
    mine = {
        name: staging.placed(sharded_state.own_tree(state))
        for name, state in states.items()
        if name in own
    }
    files: dict[str, Any] = {rank_file(rank): {**copied(random_state.current()), "objects": mine}}
    if any(state.shards for state in states.values()):
        parts: dict[str, sharded_state.Part] = {}
        for name, state in states.items():
            same = comparison.same_parts.get(name, ())
            parts |= sharded_state.parts_to_save(state, own=name in own, same_parts=same, rank=rank)
        files |= shard_files.contents(parts, rank, staging.placed)
    alike = {name: state.tree for name, state in states.items() if name not in own}
    trees, tensors = state_files.divided(alike, comparison.parameters, world_size)
    if rank == 0:
        files |= shared(staging.placed(trees), own, position, world_size)
    elif rank in tensors:
        files[state_files.state_file(rank)] = staging.placed(tensors[rank])
    return files


def shared(
    copies: Mapping[str, Any], own: Collection[str], position: Position, world_size: int
) -> dict[str, Any]:
    """The file with what all ranks share, as file name -> content.

    Args:
        copies: the encoded states, in host memory.
        own: names of the objects that differ from rank to rank.
        position: how far the training is.
        world_size: how many ranks there are.
    """
    return {
        STATE_FILE: {
            **vars(position),
            "objects": copies,
            "per_rank": sorted(own),
            "world_size": world_size,
        }
    }


def restore(
    files: RestoredFiles, objects: Mapping[str, Stateful], rank: int, world_size: int
) -> Position:
    """Put the objects and the random numbers back; how far the training was.

    Raises:
        ValueError: the checkpoint lacks the state of one of the objects, or a part of it, or does
            not fit it.
    """
    saved = shard_files.loaded(files.path(STATE_FILE))
    position = Position(**{name: saved[name] for name in vars(Position()) if name in saved})
    own, shared = saved.get("per_rank", []), saved["objects"]
    missing = sorted(objects.keys() - {*shared, *own})
    if missing:
        raise ValueError(
            f"the checkpoint of step {position.step} holds no state of {', '.join(missing)}; pass "
            f"the session the objects that it was saved with: {', '.join([*shared, *own])}"
        )
    former = saved.get("world_size", world_size)
    if own and former != world_size:
        raise ValueError(
            f"the checkpoint of step {position.step} holds a state of {', '.join(own)} for each of "
            f"its {former} ranks, and this run has {world_size} workers; resume with {former} "
            "workers, or leave what each rank has for itself out of the session"
        )
    # A rank that the former world did not have begins with its own seed.
    own_file = rank_file(rank)
    mine = shard_files.loaded(files.path(own_file)) if own_file in files.names() else None
    if own and mine is None:
        raise ValueError(
            f"the checkpoint of step {position.step} lacks {own_file}, with rank {rank}'s "
            f"state of {', '.join(own)}; it was not written by a session"
        )
    states = {
        name: _kept(
            mine["objects"][name]
            if mine is not None and name in own
            else state_files.whole(name, shared[name], files),
            thing,
        )
        for name, thing in objects.items()
    }
    whole = resharding.filled(states, objects, files)
    for name, thing in objects.items():
        _put_back(name, thing, decode(whole[name]), position.step)
    if mine is not None:
        random_state.put_back(mine)
    return position


def restore_alone(files: RestoredFiles, name: str, thing: Stateful) -> int:
    """Put back one object of a checkpoint, and nothing else; the step of the checkpoint.

    Raises:
        ValueError: the checkpoint was not written by a session, holds no state of that name, or its
            state does not fit the object.
    """
    if STATE_FILE not in files.names():
        raise ValueError(
            f"the checkpoint has no {STATE_FILE}, so it was not written by a Session; read its "
            "files as the code that wrote them does"
        )
    saved = shard_files.loaded(files.path(STATE_FILE))
    own, shared = saved.get("per_rank", []), saved["objects"]
    if name in own:
        tree = shard_files.loaded(files.path(rank_file(0)))["objects"][name]
    elif name in shared:
        tree = state_files.whole(name, shared[name], files)
    else:
        raise ValueError(
            f"the checkpoint holds no state of {name!r}; name one of its objects: "
            f"{', '.join([*shared, *own])}"
        )
    tree = resharding.filled({name: _kept(tree, thing)}, {name: thing}, files)[name]
    _put_back(name, thing, decode(tree), int(saved["step"]))
    return int(saved["step"])


def _put_back(name: str, thing: Stateful, state: Any, step: int) -> None:
    """Have an object become what it was.

    Raises:
        ValueError: it is a model or an optimizer that was made in another way.
    """
    try:
        thing.load_state_dict(state)
    except (KeyError, RuntimeError, ValueError) as error:
        if isinstance(thing, Optimizer):
            how = (
                "make it over the same parameters as then, with all of its groups before the "
                "session, also those of layers that are trained later: it leaves out what has no "
                "gradient"
            )
        elif isinstance(thing, torch.nn.Module):
            how = "make it with the same layers and sizes as then, or begin a new run"
        else:
            raise
        reason = " ".join(str(error).split())[:_REASON]
        raise ValueError(
            f"the checkpoint of step {step} does not fit {name} ({reason}); {how}"
        ) from error


def _kept(tree: Any, thing: Stateful) -> Any:
    """A loaded state for an object: a model copies it into its own tensors, others may keep it."""
    return tree if isinstance(thing, torch.nn.Module) else copied(tree)


def copied(value: Any) -> Any:
    """An encoded state's deep copy in host memory: training goes on while it is written."""
    if isinstance(value, torch.Tensor):
        return value.to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(item) for item in value)
    return value  # the others never change
