"""Saved tensors as they are restored: whole, or into DTensors of this run.

What this run holds whole is read from its file as it is. Into DTensors PyTorch's own reader and
planner of distributed checkpoints copy what this rank has, whatever ranks and mesh it was saved
from: the reader takes all that it needs from the headers of the files, and no rank asks another
one. Both come from a bucket, so what they say is compared before anything is copied.
"""

import math
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch.optim.optimizer import Optimizer

from ..error_text import first_line
from ..store.storage_errors import StorageError
from . import tensor_files
from .downloads import RestoredFiles
from .encoding import NotSavable, UnknownForm, encode
from .sharded_state import (
    Description,
    Encoded,
    entries,
    has_shards,
    is_description,
    is_sharded,
    mapped,
    read_description,
    require_contiguous,
)
from .stateful_objects import Stateful, holds_shards, optimizers_in, parameters_of

LARGEST_GRID = 2**24
"""Cells into which the edges of a tensor's parts may divide it."""


class DamagedFiles(ValueError):
    """A checkpoint's files do not hold what they have to; a sentence says what is wrong."""


class DoesNotFit(ValueError):
    """A saved tensor has no place in this run; a sentence says which and why."""


def filled(
    trees: Mapping[str, Any],
    objects: Mapping[str, Stateful],
    files: RestoredFiles,
    *,
    on_devices: bool = False,
) -> dict[str, Any]:
    """The saved states, with tensors in place of the descriptions.

    A DTensor that is there already, as a model's parameters are, is overwritten in place: there is
    no second copy of it. A tensor that was saved whole becomes a DTensor where this run has one.

    Args:
        trees: encoded states by the objects' names.
        objects: this run's.
        files: of the checkpoint.
        on_devices: whether tensors that an object keeps come back on a GPU if they were on one.

    Raises:
        DamagedFiles: a tensor is missing, or is not what it should be.
        DoesNotFit: this run has no place for one of the tensors, or one of another shape.
    """
    whole, targets = _WholeTensors(files), dict[str, _Target]()
    trees_filled = {}
    for name, tree in trees.items():
        thing = objects[name]
        places = _places(name, thing, tree) if has_shards(tree) or _is_laid_out(thing) else {}
        slots = _slots_of(name, thing) if isinstance(thing, Optimizer) else {}

        def fill(
            place: str,
            value: Any,
            places: Mapping[str, Any] = places,
            slots: Mapping[str, Any] = slots,
            thing: Stateful = thing,
        ) -> Any:
            target = places.get(place)
            if not is_description(value):
                if is_sharded(target):
                    raise DoesNotFit(
                        f"{place} is sharded in this run, and the checkpoint has it in a form "
                        f"({value.layout}, {value.dtype}) of which no parts can be read"
                    )
                return value
            said = _said(place, value)
            if said.file is not None and not is_sharded(target):
                # A model copies it into its own tensors, others may keep it, and with it the file.
                kept = not isinstance(thing, torch.nn.Module)
                # PyTorch moves what an optimizer has for a parameter to where the parameter is.
                own = on_devices and kept and _slot(place, slots) is None
                return whole.read(place, said, kept=kept, on_device=own)
            _require_new(said, targets)
            targets[said.key] = _target(place, said, target)
            return targets[said.key].tensor

        trees_filled[name] = mapped(tree, name, fill)
    if targets:
        _read(targets, files)
    return trees_filled


def _is_laid_out(thing: Stateful) -> bool:
    """Whether an object has tensors of which each rank holds a part, or optimizers of such ones."""
    return any(map(holds_shards, (thing, *optimizers_in({"it": thing}).values())))


def require_held(trees: Mapping[str, Any], files: RestoredFiles) -> None:
    """Make sure that the files hold the tensors that the saved states describe; reads headers.

    Args:
        trees: encoded states by the objects' names.
        files: of the checkpoint.

    Raises:
        DamagedFiles: a tensor is missing, or is not what it should be.
        UnknownForm: a later version has written one of them.
    """
    whole, parts = _WholeTensors(files), dict[str, _Described]()

    described = [
        (place, _said(place, value))
        for name in trees
        for place, value in entries(trees[name], name)
        if is_description(value)
    ]
    for place, said in described:  # of types that are all known
        if said.file is not None:
            whole.require(place, said)
        else:
            _require_new(said, parts)
            parts[said.key] = _Described(place, said)
    if parts:
        _saved_parts(parts, files)


def _said(place: str, value: Any) -> Description:
    said = read_description(value)
    if said is None:
        raise DamagedFiles(f"the checkpoint does not say which tensor {place} is")
    return said


def _require_new(said: Description, others: Collection[str]) -> None:
    if said.key in others:
        raise DamagedFiles(f"the checkpoint names {said.key} for two tensors")


def require_place(name: str, thing: Stateful, state: Encoded, known: Collection[str]) -> None:
    """Make sure that a resumed run will know how to lay out what is sharded in a state.

    Args:
        name: of the object.
        thing: the object.
        state: its state.
        known: places of what was sharded in it when the session was made. A resumed run makes the
            object likewise, and has these by then.

    Raises:
        NotSavable: it would not.
    """
    new = state.shards.keys() - set(known)
    slots = _slots(name, thing) if new else {}
    for place in sorted(new):
        shape, slot = tuple(state.shards[place].shape), _slot(place, slots)
        if slot is None:
            raise NotSavable(
                f"{place} is a sharded tensor that was not there when the session was made, so a "
                "resumed run could not lay it out; let state_dict() return it from the begin on, "
                "or keep it in the state of one of PyTorch's optimizers, for a parameter of its "
                "shape"
            )
        key, parameter = slot
        if shape != tuple(parameter.shape):
            raise NotSavable(
                f"{name} keeps {key} of shape {shape} for a parameter of shape "
                f"{tuple(parameter.shape)}: sharded, it cannot be laid out anew; use an optimizer "
                "whose state has the parameters' shapes, such as AdamW"
            )


def _places(name: str, thing: Stateful, saved: Any) -> dict[str, torch.Tensor]:
    """This run's tensors by place, and for optimizers' states, which are made later, new ones."""
    found = dict(entries(encode(thing.state_dict(), f"{name}: state_dict()"), name))
    slots = _slots(name, thing)
    for place, value in entries(saved, name):
        slot = _slot(place, slots)
        if slot is not None and place not in found and _like(value, *slot):
            found[place] = _new(value, slot[1])
    return found


def _slots(name: str, thing: Stateful) -> dict[str, torch.Tensor]:
    """The parameters of PyTorch's optimizers, by the places of what these keep for them.

    An object may hold several optimizers, and return their states in its own, in any form: the
    very dicts that they have returned are searched for there.
    """
    if isinstance(thing, Optimizer):
        return _slots_of(name, thing)
    own: list[tuple[Any, Optimizer]] = []
    hooks = [
        optimizer.register_state_dict_post_hook(lambda it, state: own.append((state, it)))
        for optimizer in optimizers_in({name: thing}).values()
    ]
    if not hooks:
        return {}
    try:
        whole = thing.state_dict()
    finally:
        for hook in hooks:
            hook.remove()
    optimizers = {id(state): optimizer for state, optimizer in own}
    found = dict[str, torch.Tensor]()

    def search(place: str, value: Any) -> None:
        if id(value) in optimizers:
            found.update(_slots_of(place, optimizers[id(value)]))
        elif isinstance(value, Mapping | list | tuple):
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, item in items:
                search(f"{place}.{key}", item)

    search(name, whole)
    return found


def _slots_of(place: str, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    parameters = enumerate(parameters_of(optimizer))
    return {f"{place}.state.{number}": parameter for number, parameter in parameters}


def _slot(place: str, slots: Mapping[str, torch.Tensor]) -> tuple[str, torch.Tensor] | None:
    """What an optimizer calls the value at a place, and for which parameter; None: none does."""
    for match in re.finditer(r"\.state\.\d+(?=\.)", place):
        parameter = slots.get(place[: match.end()])
        if parameter is not None:
            return place[match.end() + 1 :], parameter
    return None


def _like(value: Any, key: str, parameter: torch.Tensor) -> bool:
    """Whether an optimizer's value for a parameter is laid out as the parameter is."""
    if not is_description(value):
        return isinstance(value, torch.Tensor) and key != "step" and value.shape == parameter.shape
    return has_shards(value) or (key != "step" and value.get("shape") == list(parameter.shape))


def _new(value: Any, parameter: torch.Tensor) -> torch.Tensor:
    said = read_description(value) if is_description(value) else value
    # Each element is copied from the checkpoint, or the checkpoint is refused.
    return torch.empty_like(parameter.detach(), dtype=getattr(said, "dtype", None))


def _on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    try:
        return tensor.to("cuda")
    except torch.cuda.OutOfMemoryError:  # the object may copy it into its own, which is there
        return tensor.clone()


class _WholeTensors:
    """Tensors that are whole in one file, which they keep unless they are copied.

    Whoever changes them has a copy of its own: several ranks may map one file.
    """

    def __init__(self, files: RestoredFiles) -> None:
        self._files, self._opened = files, dict[str, tensor_files.TensorsOfFile]()

    def read(
        self, place: str, said: Description, *, kept: bool, on_device: bool = False
    ) -> torch.Tensor:
        """A tensor.

        Args:
            place: in the saved states.
            said: what the states say of it.
            kept: whether it is needed longer than the file.
            on_device: whether it comes back on a GPU if it was on one; only where it is kept.

        Raises:
            DamagedFiles: it is not in the file that should have it, or is another one.
        """
        self.require(place, said)
        name = str(said.file)
        with readable(f"{place} in {name}"):
            found = self._opened[name].tensor(said.key)
        if kept:
            on_gpu = on_device and said.device == "cuda" and torch.cuda.is_available()
            found = _on_gpu(found) if on_gpu else found.clone()
            self._opened[name].release(said.key)
        return found if said.order is None else _in_order(found, said.order)

    def require(self, place: str, said: Description) -> None:
        """Make sure that a tensor is there; only the header is read.

        Raises:
            DamagedFiles: it is not in the file that should have it, or is another one.
        """
        name = str(said.file)
        if name not in self._opened:
            if name not in self._files.names():
                raise DamagedFiles(
                    f"the checkpoint lacks {name}, with {place}; it was not written whole"
                )
            content = self._files.content(name)
            with readable(name):
                self._opened[name] = tensor_files.TensorsOfFile(content)
        with readable(f"{place} in {name}"):
            dtype, shape = self._opened[name].described(said.key)
        if shape != said.shape or dtype is not said.dtype:
            raise DamagedFiles(f"{name} does not hold {place} as the checkpoint's state says")


class _Described(NamedTuple):
    """A tensor of which the ranks' files have parts."""

    place: str
    said: Description


class _Target(NamedTuple):
    """A tensor of this run that is filled."""

    place: str
    said: Description
    tensor: torch.Tensor


def _target(place: str, said: Description, target: torch.Tensor | None) -> _Target:
    if target is None:
        raise DoesNotFit(
            f"the checkpoint has {place}, sharded, and this run has nothing there yet; let its "
            "state_dict() return it before the session is made"
        )
    if said.shape != tuple(target.shape):
        raise DoesNotFit(
            f"{place} has shape {said.shape} in the checkpoint and {tuple(target.shape)} in this "
            "run; restore it into the model that it was saved from"
        )
    if is_sharded(target):
        require_contiguous(target, place)
    return _Target(place, said, target.detach())


def _read(targets: Mapping[str, _Target], files: RestoredFiles) -> None:
    """Fill the targets, which are given by the tensors' names in the files."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    described = {key: _Described(place, said) for key, (place, said, _) in targets.items()}
    saved, headers = _saved_parts(described, files)
    wanted = {key: t.tensor for key, t in targets.items() if key in saved.state_dict_metadata}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(wanted, saved, is_coordinator=False)
    items = dict[tuple[str, str], list[Any]]()
    for item in planner.create_local_plan().items:
        name = Path(saved.storage_data[item.storage_index].relative_path).name
        items.setdefault((name, item.storage_index.fqn), []).append(item)
    opened = dict[str, tensor_files.TensorsOfFile]()
    for (name, key), wanted_parts in items.items():
        if name not in opened:
            content = files.content(name)
            with readable(name):
                opened[name] = tensor_files.TensorsOfFile(content)
                if content.header() != headers[name]:
                    raise DamagedFiles(f"{name} was changed while it was restored")
        with readable(f"{key} in {name}"):
            saved_part = opened[name].tensor(key)
        with torch.no_grad():
            for item in wanted_parts:
                begins_and_lengths = zip(item.storage_offsets, item.lengths, strict=True)
                part = saved_part[tuple(slice(b, b + n) for b, n in begins_and_lengths)]
                target = planner.resolve_tensor(item).detach()
                if target.shape != part.shape:  # `copy_` would repeat what is there
                    raise DamagedFiles(f"{key} in {name} has another shape than its header says")
                target.copy_(part)
                planner.commit_tensor(item, target)
            del saved_part, part
            opened[name].release(key)


def _saved_parts(
    described: Mapping[str, _Described], files: RestoredFiles
) -> tuple[Any, Mapping[str, bytes]]:
    """What PyTorch knows of the parts, and the headers of their files.

    Args:
        described: by the tensors' names in the files.
        files: of the checkpoint.

    Raises:
        DamagedFiles: one of the tensors is not there as a whole, or is of another type.
    """
    # Imported here: it takes seconds, and most runs need none of it.
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import Metadata

    headers = {}
    with tempfile.TemporaryDirectory(prefix="headers-", ignore_cleanup_errors=True) as folder:
        for name in sorted(filter(tensor_files.is_tensor_file, files.names())):
            with readable(name):
                headers[name] = files.header(name)
                with Path(folder, name).open("wb") as file:
                    file.write(headers[name])
                    # With holes where the tensors are: only a few of them may be needed.
                    file.truncate(files.size(name))
                safe_open(file.name, framework="pt")
        reader = HuggingFaceStorageReader(folder)
        with readable("what the checkpoint's files say of their tensors"):
            saved: Metadata = reader.read_metadata()
    for key, (place, said) in described.items():
        metadata = saved.state_dict_metadata.get(key)
        if metadata is None:
            if math.prod(said.shape):
                raise DamagedFiles(f"the checkpoint has no part of {key}; it was not written whole")
            continue
        # Two ranks may have saved the same part; one of them is enough.
        metadata.chunks = list(
            {(tuple(c.offsets), tuple(c.sizes)): c for c in metadata.chunks}.values()
        )
        require_whole(place, said.shape, metadata.chunks)
    for index, stored in saved.storage_data.items():
        part = described.get(index.fqn)
        if part is not None and stored.dtype is not part.said.dtype:
            name = Path(stored.relative_path).name
            raise DamagedFiles(f"{name} has a part of {part.place} of type {stored.dtype}")
    return saved, headers


def require_whole(place: str, shape: tuple[int, ...], parts: Iterable[Any]) -> None:
    """Make sure that the parts make up the whole tensor, each element once.

    Args:
        place: of the tensor.
        shape: of the whole.
        parts: each with `offsets` and `sizes`.

    Raises:
        DamagedFiles: they do not.
    """
    boxes = [(tuple(part.offsets), tuple(part.sizes)) for part in parts]
    for offsets, sizes in boxes:
        if not len(shape) == len(offsets) == len(sizes) or not all(
            0 <= begin <= begin + size <= whole
            for begin, size, whole in zip(offsets, sizes, shape, strict=True)
        ):
            raise DamagedFiles(
                f"a part of {place} is at {offsets} with size {sizes}, outside of its shape {shape}"
            )
    # The parts' edges divide the tensor into cells; each cell has to be in exactly one part.
    edges: list[dict[int, int]] = []
    for d, length in enumerate(shape):
        numbers = {0, length}.union(*((o[d], o[d] + s[d]) for o, s in boxes))
        edges.append({number: index for index, number in enumerate(sorted(numbers))})
    cells = [len(each) - 1 for each in edges]
    if math.prod(cells) > LARGEST_GRID:
        raise DamagedFiles(f"the parts of {place} are not arranged in a grid")
    covered = torch.zeros(cells, dtype=torch.int32, device="cpu")
    for offsets, sizes in boxes:
        covered[
            tuple(
                slice(each[begin], each[begin + size])
                for each, begin, size in zip(edges, offsets, sizes, strict=True)
            )
        ] += 1
    if bool((covered == 0).any()):
        raise DamagedFiles(f"a part of {place}, of shape {shape}, is missing in the checkpoint")
    if bool((covered > 1).any()):
        raise DamagedFiles(f"a part of {place}, of shape {shape}, is there twice")


@contextmanager
def readable(name: str) -> Iterator[None]:
    """What is read comes from a bucket: whatever is wrong with it is one error.

    Raises:
        DamagedFiles: it cannot be read.
        UnknownForm: a later version has written it.
        StorageError: the store does not answer, or has another file meanwhile.
        OSError, MemoryError: of this machine, whose disk or memory may be full; neither says
            anything of the checkpoint.
    """
    try:
        yield
    except (UnknownForm, StorageError, OSError, MemoryError):
        raise
    except Exception as error:
        raise DamagedFiles(f"{name} cannot be read: {first_line(error)}") from error


def _in_order(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The tensor with its dimensions in that order in memory."""
    back = sorted(range(len(order)), key=lambda dim: order[dim])
    return tensor.permute(order).contiguous().permute(back)
