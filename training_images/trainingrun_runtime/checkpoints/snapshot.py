"""What a checkpoint of the session holds: the objects' state and every rank's own numbers.

`session.pt` has what all ranks share, from rank 0; `random-<rank>.pt` has what one rank alone has:
its random numbers, and the state of every object that differs from rank to rank. Both are small:
tensors are in safetensors files, and described here. `state-<rank>.safetensors` has those that all
ranks hold alike (`state_comparison`), `rank-<rank>.safetensors` the parts of those that are
sharded, and what one rank alone has.
"""

import io
import pickle
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import random_numbers
from ..error_text import first_line
from ..store.storage_errors import DamagedError, StorageError
from . import (
    restored_objects,
    restored_tensors,
    sharded_state,
    state_comparison,
    tensor_files,
)
from .downloads import STATE_FILE, RestoredFiles
from .encoding import TAG, NotSavable, UnknownForm, decode, encode, unknown
from .restored_tensors import DamagedFiles, readable
from .sharded_state import Encoded
from .staging import Staging
from .state_comparison import Comparison
from .stateful_objects import Stateful
from .tensor_files import RANK_TENSORS, STATE_TENSORS, Part, TensorFile

MANY = 100_000
"""Tensors of an object from which on their names may take more than a file holds of them."""
_OF_PYTORCH = re.compile(r"GLOBAL torch\.(\w+) was not an allowed")
"""What PyTorch's reader without code says of a dtype of a later PyTorch."""


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
            state = encode(restored_objects.state_of(name, thing), f"{name}: state_dict()")
            found[name] = sharded_state.split(state, name, restored_objects.notes(thing))
            restored_objects.require_own_memory(name, thing, found[name])
    return found


def try_out(states: Mapping[str, Encoded]) -> None:
    """Refuse what could not be saved, before anything is copied.

    Raises:
        NotSavable: one of the states cannot be read back, or its tensors not be written; or two of
            them have a tensor of one name.
    """
    _require_different_places(states)
    for name, state in states.items():
        tensor_files.require_names(place for place, _ in sharded_state.entries(state.tree, name))
        sharded_state.parts(state)
        _require_readable(name, state.tree)
        tensors = {
            place: tensor_files.whole(value)
            for place, value in sharded_state.entries(state.tree, name)
            if isinstance(value, torch.Tensor) and tensor_files.fits(value)
        }
        if len(tensors) > MANY:
            TensorFile(tensors).require_header()


def _require_different_places(states: Mapping[str, Encoded]) -> None:
    """Tensors are saved by their places, in which names of objects with a dot can meet."""
    owners = dict[str, str]()
    for name in sorted(states):
        for place, _ in sharded_state.entries(states[name].tree, name):
            if (owner := owners.setdefault(place, name)) != name:
                raise NotSavable(
                    f"{owner} and {name} both have a tensor {place}; give the session one of these "
                    "objects under another name"
                )


def require_readable(files: Mapping[str, Any]) -> None:
    """Make sure that what is no tensor in a rank's files will be read back as it is written.

    What a checkpoint holds of it may change from save to save, so each is tried before it counts.

    Raises:
        NotSavable: with the name of the object that would not.
    """
    for content in files.values():
        if not isinstance(content, TensorFile):
            for name, tree in content["objects"].items():
                _require_readable(name, tree)


def _require_readable(name: str, tree: Any) -> None:
    file = io.BytesIO()
    try:
        torch.save(_hollow(tree), file)
        file.seek(0)
        decode(torch.load(file, weights_only=True))
    except Exception as error:
        raise NotSavable(
            f"{name}: its state cannot be read back from a checkpoint ({first_line(error)}); let "
            "state_dict() return numbers, text, lists, dicts, arrays and tensors"
        ) from error


def _hollow(state: Any) -> Any:
    """An encoded state without its tensors: those are written in a form of their own."""
    if isinstance(state, torch.Tensor) or sharded_state.is_description(state):
        return None
    if isinstance(state, dict):
        if state.get(TAG) == "array":
            return {**state, "shape": [0], "bytes": torch.empty(0, dtype=torch.uint8)}
        return {key: _hollow(item) for key, item in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_hollow(item) for item in state)
    return state


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
    files = place(states, comparison, position, rank, world_size, staging)
    staging.copy()
    return files


def place(
    states: Mapping[str, Encoded],
    comparison: Comparison,
    position: Position,
    rank: int,
    world_size: int,
    staging: Staging,
) -> dict[str, Any]:
    """The files of `take`, with places for the tensors' copies: nothing is copied yet."""
    own = comparison.own
    staging.begin()
    parts: dict[str, Part] = {}
    mine, noted = {}, {name: state.notes for name, state in states.items()}
    for name, state in states.items():
        if name in own:
            mine[name] = _own_tree(state, name, rank, parts, staging)
        if state.shards:
            same = comparison.same_parts.get(name, ())
            parts |= sharded_state.parts_to_save(state, own=name in own, same_parts=same, rank=rank)
    numbers = sharded_state.copied(random_numbers.current())
    of_mine = {name: noted[name] for name in mine}
    files: dict[str, Any] = {rank_file(rank): {**numbers, "objects": mine, "notes": of_mine}}
    alike = {name: state.tree for name, state in states.items() if name not in own}
    leave = staging.placed if rank == 0 else lambda tensor: tensor
    trees, tensors = state_comparison.divided(alike, comparison.buffers, world_size, leave)
    if rank == 0:
        files[STATE_FILE] = _shared(trees, noted, own, position, world_size, numbers=True)
    for kind, found in ((STATE_TENSORS, tensors.get(rank)), (RANK_TENSORS, parts)):
        if found:
            files[tensor_files.file_name(kind, rank)] = TensorFile(
                {key: it._replace(local=staging.placed(it.local)) for key, it in found.items()}
            )
    return files


def _own_tree(
    state: Encoded, name: str, rank: int, parts: dict[str, Part], staging: Staging
) -> Any:
    """The tree of an object that differs from rank to rank; its tensors are put into `parts`."""

    def put(place: str, tensor: torch.Tensor) -> Mapping[str, Any]:
        key = f"{place}@{rank}"  # other ranks' files have one of the same place
        parts[key] = tensor_files.whole(tensor)
        return sharded_state.described(key, tensor, tensor_files.file_name(RANK_TENSORS, rank))

    tree = sharded_state.own_tree(state)
    return sharded_state.taken_out(tree, name, put, staging.placed)


def shared(
    copies: Mapping[str, Any],
    noted: Mapping[str, Mapping[str, Any]],
    position: Position,
    world_size: int,
) -> dict[str, Any]:
    """The files with what all ranks share, as file name -> content, of one rank that has all of it.

    Args:
        copies: the encoded states, in host memory, which are the same on all ranks.
        noted: what `restored_objects.notes` returned, by the objects' names.
        position: how far the training is.
        world_size: how many ranks there are.
    """
    trees, tensors = state_comparison.divided(copies, {}, ranks=1)
    state = _shared(trees, noted, (), position, world_size, numbers=False)
    files: dict[str, Any] = {STATE_FILE: state}
    if tensors:
        files[tensor_files.file_name(STATE_TENSORS, 0)] = TensorFile(tensors[0])
    return files


def _shared(
    trees: Mapping[str, Any],
    noted: Mapping[str, Mapping[str, Any]],
    own: Collection[str],
    position: Position,
    world_size: int,
    *,
    numbers: bool,
) -> dict[str, Any]:
    """What `session.pt` holds; `numbers`: whether each rank has a file of its own, too."""
    return {
        **vars(position),
        "objects": trees,
        "notes": {name: noted[name] for name in trees},
        "per_rank": sorted(own),
        "world_size": world_size,
        "numbers": numbers,
    }


def rank_tensors(parts: Mapping[str, Part], rank: int) -> dict[str, Any]:
    """The file with a rank's parts of what is sharded, as file name -> content; none without."""
    return {tensor_files.file_name(RANK_TENSORS, rank): TensorFile(parts)} if parts else {}


def restore(
    files: RestoredFiles, objects: Mapping[str, Stateful], rank: int, world_size: int
) -> Position:
    """Put the objects and the random numbers back; how far the training was.

    Raises:
        ValueError: the checkpoint lacks the state of one of the objects, or a part of it, or does
            not fit it.
    """
    saved = _small(files, STATE_FILE)
    position = Position(**{name: saved[name] for name in vars(Position()) if name in saved})
    own, shared = saved["per_rank"], saved["objects"]
    missing = sorted(objects.keys() - {*shared, *own})
    if missing:
        raise ValueError(
            f"the checkpoint of step {position.step} holds no state of {', '.join(missing)}; pass "
            f"the session the objects that it was saved with: {', '.join([*shared, *own])}"
        )
    former = saved["world_size"]
    if own and former != world_size:
        raise ValueError(
            f"the checkpoint of step {position.step} holds a state of {', '.join(own)} for each of "
            f"its {former} ranks, and this run has {world_size} workers; resume with {former} "
            "workers, or leave what each rank has for itself out of the session"
        )
    mine = _own_file(files, saved, rank)
    trees = {
        name: mine["objects"][name] if mine is not None and name in own else shared[name]
        for name in objects
    }
    noted = {**saved["notes"], **(mine["notes"] if mine is not None else {})}
    restored_objects.require_same_types(objects, noted, position.step)
    whole = restored_tensors.filled(trees, objects, files, on_devices=True)
    for name, thing in objects.items():
        state = decode(whole.pop(name))  # a copy goes once its object has copied it
        restored_objects.put_back(name, thing, state, noted[name], position.step)
    if mine is not None:
        random_numbers.put_back(mine)
    return position


def _own_file(files: RestoredFiles, saved: Mapping[str, Any], rank: int) -> Any:
    """What the rank alone has; None: the checkpoint has nothing of its own for it.

    A rank that the former world did not have begins with its own seed, and so do all after a
    checkpoint that survivors have saved.

    Raises:
        DamagedFiles: it is missing, or cannot be read.
    """
    name = rank_file(rank)
    if name in files.names():
        return _small(files, name)
    if saved["numbers"] and rank < saved["world_size"]:
        raise DamagedFiles(f"the checkpoint lacks {name}; it was not written whole")
    return None


def unreadable(files: RestoredFiles, names: Collection[str]) -> str | None:
    """Why a session's checkpoint cannot be restored, in a sentence; None: nothing is wrong.

    Its files are as they were committed. This is for those that were committed and can be read by
    nobody, or that lack a rank's file or a tensor: the checkpoint before it counts then.

    Args:
        files: of the checkpoint.
        names: of `session.pt` and the ranks' own files, those that are read; and the headers of the
            tensors that they describe.

    Raises:
        UnknownForm: a later version has written it, which can read it.
        StorageError: the store does not answer, so it is unknown.
        OSError, MemoryError: so it is where this machine's disk fails, or its memory is full.
    """
    for name in names:
        try:
            content = _small(files, name)
            for tree in content["objects"].values():
                decode(_hollow(tree))
            restored_tensors.require_held(content["objects"], files)
            ranks = content.get("world_size", 0) if content.get("numbers") else 0
            missing = [r for r in range(ranks) if rank_file(r) not in files.names()]
        except (DamagedError, DamagedFiles) as error:
            return first_line(error)
        except (UnknownForm, StorageError, OSError, MemoryError):
            raise
        except Exception as error:
            return f"{name} cannot be read: {first_line(error)}"
        if missing:
            return f"it lacks {rank_file(missing[0])}, of one of its {ranks} ranks"
    return None


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
    saved = _small(files, STATE_FILE)
    own, shared = saved["per_rank"], saved["objects"]
    if name in own:
        holder = _small(files, rank_file(0))
    elif name in shared:
        holder = saved
    else:
        raise ValueError(
            f"the checkpoint holds no state of {name!r}; name one of its objects: "
            f"{', '.join([*shared, *own])}"
        )
    step, noted = int(saved["step"]), holder["notes"]
    restored_objects.require_same_types({name: thing}, noted, step)
    tree = restored_tensors.filled({name: holder["objects"][name]}, {name: thing}, files)[name]
    restored_objects.put_back(name, thing, decode(tree), noted[name], step)
    return step


def _small(files: RestoredFiles, name: str) -> Any:
    """What `session.pt` or a rank's own file holds; no code in it is executed.

    Raises:
        DamagedFiles: it cannot be read.
        UnknownForm: a later version of PyTorch has written it.
    """
    content = files.content(name)
    with readable(name):
        try:
            return torch.load(content.open(), map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:  # whose text recommends to execute what is in it
            lacking = _OF_PYTORCH.search(f"{error}")
            if lacking is not None and not hasattr(torch, lacking[1]):
                raise unknown(f"torch.{lacking[1]}", "PyTorch") from error
            raise ValueError("it holds what no session writes") from error
