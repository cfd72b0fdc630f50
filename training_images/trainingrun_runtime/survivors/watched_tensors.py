"""Parameters, buffers and optimizers' tensors: whether something may have changed them.

Parameters and what an optimizer keeps for them are not copied. A write by PyTorch shows in their
version counters. A write past these (through `.data`, NumPy, DLPack or a flat buffer) goes through
an alias, and while there is one, which the use count of the memory shows, they count as changed.
Where the alias is gone again, a few elements are compared, which shows most such writes and not
all: docs/training.md says so. What the forward pass changes (buffers) is copied.
"""

import functools
import gc
import weakref
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..checkpoints.sharded_state import held_tensor, is_sharded
from ..checkpoints.stateful_objects import holds_shards, parameters_of

LARGEST_COPY = 64 * 2**20
"""Bytes of buffers that are copied at the end of a step."""
SAMPLED, SAMPLE = 16, 64
"""Parameters of which some elements are compared, and how many."""
ALIAS = (
    "the memory of parameters, or of an optimizer's state, has an alias (such as `.data`, a NumPy "
    "array or a flat buffer), by which it may change without notice"
)
DOUBT = (
    "the ranks may have states of their own, as not all of them follows from exchanged gradients"
)
CONSTANTS = (type(None), bool, int, float, complex, str, tuple, np.number)
_NAMES = "param_names"
"""What a group has of an optimizer over `named_parameters()`: it never changes, and is long."""


class NotCovered(Exception):
    """The last step of such objects cannot be noted; a sentence says of which and why."""


class NotWhole(Exception):
    """This rank has no last step that it could save; a sentence says why."""


Groups = Sequence[Mapping[str, Any]]
"""Settings of an optimizer's groups of parameters."""


class WatchedTensors:
    """The tensors of models and optimizers.

    Args:
        models: by name.
        optimizers: by name.
        replicated: names of models whose buffers are taken from rank 0 before each forward pass.

    Raises:
        NotCovered: a model has something that may change without notice.
    """

    def __init__(
        self,
        models: Mapping[str, torch.nn.Module],
        optimizers: Mapping[str, Optimizer],
        replicated: Collection[str] = (),
    ) -> None:
        self._models, self._optimizers = models, optimizers
        self._parameters: dict[int, torch.Tensor] = {}
        # model -> id -> itself, its copy
        self._buffers: dict[str, dict[int, tuple[torch.Tensor, torch.Tensor]]] = {}
        self._laid_out: dict[str, Any] = {}  # states of the models that are sharded
        for name, model in models.items():
            self._add_model(name, model)
        buffers = [pair for pairs in self._buffers.values() for pair in pairs.values()]
        if sum(buffer.nbytes for buffer, _ in buffers) > LARGEST_COPY:
            raise NotCovered("the model's buffers are too large to be copied after each step")
        parameters = list(self._parameters.values())
        self._plain = [parameter for parameter in parameters if not is_sharded(parameter)]
        self._sharded = [parameter for parameter in parameters if is_sharded(parameter)]
        self._places = self._current_places()
        sampled = parameters[:: max(1, -(-len(parameters) // SAMPLED))]
        self._sampled = sampled
        self._all_buffers = buffers
        # Views of some elements, and their copies:
        self._samples: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._whole: list[bool] = []
        self._rows: list[torch.Tensor] = []  # the copies in host memory that each rank has whole
        self._copies: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        self._first = {id(copy): copy.clone() for _, copy in buffers}
        self._first_versions = {id(buffer): buffer._version for buffer, _ in buffers}
        self._tensors: list[torch.Tensor] = []
        self._own: list[torch.Tensor] = []  # those, and this object's views of them
        self._storages: list[torch.UntypedStorage] = []  # of what this rank has whole
        self._numbers: list[int] = []  # theirs
        self._users: list[int] = []  # how many of `_own` have each of them
        self._kept: dict[str, set[int]] = {}  # ids of each optimizer's tensors
        self._states = -1
        self._counted: list[tuple[Any, Any]] = []  # places of the optimizers' numbers
        self._own_buffers = [  # of models whose buffers each rank has for itself
            pair
            for name, pairs in self._buffers.items()
            if name not in replicated
            for pair in pairs.values()
        ]
        self._last: list[int] = []  # the versions that were read last
        self._readers: list[weakref.ref[torch.Tensor]] = []
        # By optimizer: each parameter, and the numbers of its tensors in `_tensors`.
        self._places_of: dict[str, list[tuple[torch.Tensor, list[int]]]] = {}
        self._moved: dict[int, torch.Tensor] = {}  # by something else than an exchanged gradient
        _hook_optimizers()
        _watching.add(self)  # each step of an optimizer is looked around while this object is there
        self._update_tensors()
        self._last = self.versions()
        self.gpu = next((t.device for t in self._parameters.values() if t.is_cuda), None)
        """Where the parameters are; None: in host memory."""

    def note(self) -> list[int]:
        """Copy what is copied; the versions of everything else.

        Raises:
            NotWhole: something may change the rest without notice.
            NotCovered: the training code assigns to the data of parameters.
        """
        if self._current_places() != self._places:
            raise NotCovered("the training code replaces the memory of parameters")
        self._update_tensors()
        if self._current_users() != self._users:
            raise NotWhole(ALIAS)
        for copies, originals in self._copies:  # detached, all of them
            torch._foreach_copy_(copies, originals)
        self._look()
        return self._last.copy()

    @property
    def some_moved(self) -> bool:
        """Whether a rank may hold what no other one has, as of the last note."""
        return bool(self._moved or self._changed_buffers() or self._counted)

    def moved_alone(self) -> list[torch.Tensor] | None:
        """What a rank may have changed alone, as of the last note; None: nobody can tell.

        All of a tensor that something else than an optimizer has changed, and the elements of
        others that are compared anyway. On a GPU, whose end of the step would have to be waited
        for, nobody can.
        """
        moved = list(self._moved.values())
        buffers = self._changed_buffers()
        if any(is_sharded(tensor) or not tensor.is_cpu for tensor in (*moved, *buffers)):
            return None
        return [*(tensor.detach() for tensor in moved), *buffers, *self._rows]

    def numbers(self) -> list[Any]:
        """What the optimizers' states hold beside tensors."""
        return [values.get(key) for values, key in self._counted]

    def _changed_buffers(self) -> list[torch.Tensor]:
        return [
            copy
            for buffer, copy in self._own_buffers
            if (
                not torch.equal(copy, self._first[id(copy)])
                if buffer.is_cpu
                else buffer._version != self._first_versions[id(buffer)]
            )
        ]

    def _look(self) -> None:
        """Find what was changed since the last look."""
        now = self.versions()
        if now != self._last:
            for tensor, version, last in zip(self._tensors, now, self._last, strict=True):
                if version != last:
                    self._moved[id(tensor)] = tensor
            self._last = now

    def _explain(self, optimizer: Optimizer) -> None:
        """An optimizer of the session has used the gradients, which were exchanged."""
        for name, own in self._optimizers.items():
            if own.param_groups is optimizer.param_groups:
                self._update_tensors()
                for parameter, places in self._places_of[name]:
                    if parameter.grad is not None:
                        for place in places:
                            self._last[place] = self._tensors[place]._version

    def versions(self) -> list[int]:
        """Version counters: each is another number once its tensor was changed by PyTorch."""
        return [tensor._version for tensor in self._tensors]

    def add_readers(self, tensors: Iterable[torch.Tensor]) -> None:
        """A save has these, and nothing writes through them: none of them is an alias.

        They may outlive the save, in the traceback of an exception that has ended it.
        """
        self._readers = [weakref.ref(tensor) for tensor in tensors]

    def require_untouched(self) -> None:
        """Make sure that nothing has written past the version counters, as far as that is known.

        Raises:
            NotWhole: something may have.
        """
        # Autograd has aliases too, until the backward pass; no object of Python stands for them.
        if self._current_users() != self._users and self._has_alias():
            raise NotWhole(ALIAS)
        if self._current_places() != self._places or not all(map(_same_bits, self._samples)):
            raise NotWhole("parameters were changed past PyTorch's version counters")

    def samples(self) -> list[torch.Tensor]:
        """A few elements of parameters that each rank has whole, as they were after the step."""
        return [copy for (_, copy), whole in zip(self._samples, self._whole, strict=True) if whole]

    def buffers(self, name: str) -> list[torch.Tensor]:
        """Copies of a model's buffers."""
        return [copy for _, copy in self._buffers[name].values()]

    def buffers_changed(self, name: str) -> bool:
        """Whether training changes the model's buffers."""
        # Each of them: `LastStep` has the kernels of all their types loaded by it.
        equal = [torch.equal(copy, self._first[id(copy)]) for copy in self.buffers(name)]
        return not all(equal)

    def of_model(self, name: str) -> Any:
        """What its `state_dict()` returned at the end of the step.

        Raises:
            NotWhole: it has something now that it did not have then.
        """
        model, buffers = self._models[name], self._buffers[name]
        if name in self._laid_out:
            # Its `state_dict` would lay it out anew in the middle of a step. What it has between
            # the steps are the same parameters, always.
            state = _copy(self._laid_out[name])
            now = {id(buffer) for buffer in model.buffers()}
        else:
            state = model.state_dict(keep_vars=True)
            now = {id(value) for value in state.values()}
        for key, value in state.items():
            if id(value) in buffers and id(value) in now:
                state[key] = buffers[id(value)][1]
            elif id(value) in buffers or id(value) not in self._parameters:
                raise NotWhole(f"{name}: {key} was replaced")
        return state

    def of_optimizer(self, name: str, groups: Groups) -> dict[str, Any]:
        """What its `state_dict()` returned at the end of the step, with these settings.

        Raises:
            NotWhole: it has something now that it did not have then.
        """
        state = self._optimizers[name].state_dict()
        if set(state) != {"state", "param_groups"} or len(state["param_groups"]) != len(groups):
            raise NotWhole(f"{name} has other parameters, or more than those, in its state")
        known, found = self._kept[name], set()
        numbers = {(id(values), key) for values, key in self._counted}
        numbers |= {(id(group), key) for group in groups for key in group}
        for values in (*state["state"].values(), *groups):
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    if id(value) not in known:
                        raise NotWhole(f"{name}: {key} was replaced")
                    found.add(id(value))
                elif not isinstance(value, CONSTANTS):
                    raise NotWhole(f"{name}: {key} is a {type(value).__name__}")
                elif value is not None and (id(values), key) not in numbers:
                    raise NotWhole(f"{name}: {key} is new")
        if found != known:
            raise NotWhole(f"{name} has less in its state than after the step")
        now = state["param_groups"]
        if any(n.keys() - {"params", _NAMES} != g.keys() for n, g in zip(now, groups, strict=True)):
            raise NotWhole(f"{name} has other settings")
        param_groups = [
            {key: _given(then.get(key, value)) for key, value in group.items()}
            for group, then in zip(now, groups, strict=True)
        ]
        return {"state": state["state"], "param_groups": param_groups}

    def _add_model(self, name: str, model: torch.nn.Module) -> None:
        state = model.state_dict(keep_vars=True)  # first: it lays a sharded model out
        parameters = {id(p) for p in model.parameters()}
        buffers = {id(b) for b in model.buffers()}
        self._buffers[name] = {}
        for key, value in state.items():
            if id(value) in parameters:
                self._parameters[id(value)] = value
            elif id(value) in buffers and not is_sharded(value):
                self._buffers[name][id(value)] = (value, value.detach().clone())
            else:
                raise NotCovered(
                    f"{name} has {key} in its state, which is no parameter and no whole buffer"
                )
        if holds_shards(model):
            self._laid_out[name] = state

    def _update_tensors(self) -> None:
        """The tensors whose versions count; an optimizer makes its own in its first step."""
        states = sum(len(optimizer.state) for optimizer in self._optimizers.values())
        if states == self._states:
            return
        self._states = states
        found = list(self._parameters.values())
        for name, optimizer in self._optimizers.items():
            kept = [
                tensor
                for values in (*optimizer.state.values(), *settings(optimizer))
                for tensor in values.values()
                if isinstance(tensor, torch.Tensor)
            ]
            self._kept[name] = {id(tensor) for tensor in kept}
            found += kept
        self._counted = [
            (values, key)
            for optimizer in self._optimizers.values()
            for values in optimizer.state.values()
            for key, value in values.items()
            if not isinstance(value, torch.Tensor) and value is not None
        ]
        self._sample(found[len(self._parameters) :])
        # A part may be changed as what it is, and as a part of the whole: each counts by itself.
        known = dict(zip(map(id, self._tensors), self._last, strict=True))
        self._tensors = [*found, *(held_tensor(tensor) for tensor in found if is_sharded(tensor))]
        self._last = [known.get(id(tensor), -1) for tensor in self._tensors]
        self._place()
        self._own = [*map(held_tensor, self._tensors), *self._views()]
        users = Counter(tensor.untyped_storage() for tensor in _distinct(self._own))
        # FSDP2 has, and makes, aliases of its own: of these nothing can be told.
        whole = [tensor for tensor in found if not is_sharded(tensor)]
        self._storages = list({tensor.untyped_storage() for tensor in whole})
        self._numbers = [storage._cdata for storage in self._storages]
        self._users = [users[storage] + 1 for storage in self._storages]

    def _place(self) -> None:
        number = {id(tensor): place for place, tensor in enumerate(self._tensors)}

        def places(parameter: torch.Tensor, state: Mapping[str, Any]) -> list[int]:
            parts = map(id, _parts(parameter, state))
            return [number[part] for part in parts if part in number]

        self._places_of = {
            name: [(p, places(p, optimizer.state.get(p, {}))) for p in parameters_of(optimizer)]
            for name, optimizer in self._optimizers.items()
        }

    def _sample(self, kept: Sequence[torch.Tensor]) -> None:
        """Choose the elements that are compared: of parameters, and of what optimizers keep."""
        sampled = [*self._sampled, *kept[:: max(1, -(-len(kept) // SAMPLED))]]
        kinds: dict[Any, list[torch.Tensor]] = {}
        for tensor in sampled:
            kind = (tensor.device, tensor.dtype, not is_sharded(tensor))
            kinds.setdefault(kind, []).append(_some(tensor))
        self._samples, self._whole, self._rows = [], [], []
        for (device, _, whole), views in kinds.items():
            row = torch.cat(views)
            copies = row.split([len(view) for view in views])
            self._samples += zip(views, copies, strict=True)
            self._whole += [whole] * len(views)
            if whole and device.type == "cpu":
                self._rows.append(row)
        self._copies = _by_kind([*self._all_buffers, *self._samples])

    def _views(self) -> list[torch.Tensor]:
        """Buffers, and the tensors of this object that have the memory of others."""
        buffers = [buffer for pairs in self._buffers.values() for buffer, _ in pairs.values()]
        views = [view for _, originals in self._copies for view in originals]
        views += [view for view, _ in self._samples]
        return [*buffers, *views, *(view._base for view in views if view._base is not None)]

    def _current_users(self) -> list[int]:
        """How many tensors have the memory of each storage, and this object, which has all."""
        return list(map(torch._C._storage_Use_Count, self._numbers))

    def _has_alias(self) -> bool:
        """Whether an object of Python stands for memory of one of them, beside those known."""
        places = {storage.data_ptr() for storage in self._storages} - {0}
        readers = [tensor for reader in self._readers if (tensor := reader()) is not None]
        known = set(map(id, [*self._own, *readers]))
        # Not `isinstance`, which asks the object, and some warn of being asked.
        tensors = (thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor))
        return any(id(tensor) not in known and _place(tensor) in places for tensor in tensors)

    def _current_places(self) -> list[int]:
        held = map(held_tensor, self._sharded)
        return [tensor.data_ptr() for tensors in (self._plain, held) for tensor in tensors]


_watching: "weakref.WeakSet[WatchedTensors]" = weakref.WeakSet()


@functools.cache
def _hook_optimizers() -> None:
    """Once, and for ever: an object is freed at any moment, also in the middle of a step.

    A hook of its own that is removed then would end the step, which iterates over the hooks.
    """
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


def _before_step(*_: Any) -> None:
    for watched in list(_watching):
        watched._look()


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    for watched in list(_watching):
        watched._explain(optimizer)


class _Copied(tuple[Any]):
    """A copy of a setting that may be changed in its place: the next step's is another one.

    As a tuple it is a constant, which is compared with other ranks'.
    """

    __slots__ = ()


def settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The settings of its groups of parameters."""
    return [
        {
            key: _Copied((deepcopy(value),)) if _is_copied(value) else value
            for key, value in group.items()
            if key not in ("params", _NAMES)
        }
        for group in optimizer.param_groups
    ]


def _is_copied(value: Any) -> bool:
    return isinstance(value, list | dict | torch.dtype) and _is_constant(value)


def _is_constant(value: Any) -> bool:
    """Whether nothing in it is a tensor, or of another type whose changes nobody sees."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return all(map(_is_constant, value))
    return isinstance(value, (*CONSTANTS, torch.dtype))


def _given(setting: Any) -> Any:
    """A setting as the group has it."""
    return setting[0] if isinstance(setting, _Copied) else setting


def _parts(parameter: torch.Tensor, state: Mapping[str, Any]) -> Iterable[torch.Tensor]:
    """A parameter and what an optimizer keeps for it; of what is sharded, the own part as well."""
    for tensor in (parameter, *state.values()):
        if isinstance(tensor, torch.Tensor):
            yield tensor
            if is_sharded(tensor):
                yield held_tensor(tensor)


def _copy(state: Any) -> Any:
    """A state with the same tensors; `copy()` would leave its metadata out."""
    copy = OrderedDict(state)
    copy._metadata = getattr(state, "_metadata", None)  # type: ignore[attr-defined]
    return copy


def _by_kind(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Copies and originals, as lists of one type and device: then one kernel copies a list."""
    kinds: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for original, copy in pairs:
        copies, originals = kinds.setdefault((original.device, original.dtype), ([], []))
        copies.append(copy)
        originals.append(original.detach())
    return list(kinds.values())


def _some(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a few elements, evenly spread; none where their memory is not in a row."""
    flat = held_tensor(tensor).detach()
    if not flat.is_contiguous():
        return flat.new_empty(0)
    flat = flat.view(-1)
    return flat[:: max(1, flat.numel() // SAMPLE)]


def _same_bits(sample: tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Whether the elements have the very bits that they had; NaN is NaN then."""
    view, copy = sample
    same: bool = torch.equal(view.contiguous().view(torch.uint8), copy.view(torch.uint8))
    return same


def _distinct(tensors: Sequence[torch.Tensor]) -> Iterable[torch.Tensor]:
    return {id(tensor): tensor for tensor in tensors}.values()


def _place(tensor: torch.Tensor) -> int:
    """Where its memory begins; 0: it has none that could be another's."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):  # of another layout, or without memory
        return 0
