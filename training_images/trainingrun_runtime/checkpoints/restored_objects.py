"""Objects as they are restored: each is of the type that it was, and what it keeps is exact.

PyTorch's optimizers take a state in a form of their own making: a text becomes another one, a deque
loses its limit, and float32 averages of a bfloat16 model are rounded. And any optimizer, and any
scheduler, takes the state of any other one.
"""

import copy
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from . import adapters, gradients
from .adapters import Adapters
from .encoding import NotSavable
from .sharded_state import Encoded, entries
from .stateful_objects import Stateful, generator_of, parameters_of

_REASON = 200
"""Characters of PyTorch's own text in an error."""
_GRADIENTS = "gradients"
_TYPE = "type"
_FROZEN = "frozen"


def notes(thing: Stateful, present: Any = None) -> dict[str, Any]:
    """What a session notes of an object, beside what its `state_dict()` returns.

    Args:
        thing: the object.
        present: of an optimizer, what `gradients.present` returned; default: as it is now.
    """
    found: dict[str, Any] = {}
    if not isinstance(thing, torch.nn.Module):
        found[_TYPE] = _type_of(thing)
    if isinstance(thing, Adapters):
        found[_FROZEN] = thing.frozen
    if isinstance(thing, Optimizer):
        found[_GRADIENTS] = gradients.present(thing) if present is None else present
    return found


def state_of(name: str, thing: Stateful) -> Mapping[str, Any]:
    """What its `state_dict()` returns.

    Raises:
        NotSavable: an optimizer keeps something of which no one knows whose it is, or a parameter
            that was left out as a frozen one is trained.
    """
    if isinstance(thing, Adapters) and (parameter := thing.thawed()) is not None:
        raise NotSavable(
            f"{name} has {parameter}, which is trained now and was frozen when the session was "
            "made: of a model of PEFT frozen parameters are not saved; have it require a gradient "
            "before the session, or leave it frozen"
        )
    if not isinstance(thing, Optimizer):
        return thing.state_dict()
    parameters = parameters_of(thing)
    known = set(map(id, parameters))
    try:
        state: Any = thing.state_dict()
    except KeyError as error:
        for key in thing.state:
            if isinstance(key, torch.Tensor) and id(key) not in known:
                raise NotSavable(
                    f"{name} keeps a state for a tensor of shape {tuple(key.shape)} that is in "
                    "none of its groups of parameters; delete that state with the parameter"
                ) from error
        raise
    for key in thing.state:
        if not isinstance(key, torch.Tensor) and key in range(len(parameters)):
            raise NotSavable(
                f"{name} keeps a state under {key!r}, which is also the number of one of its "
                "parameters in state_dict(); keep it under a name"
            )
    return state  # type: ignore[no-any-return]


def require_own_memory(name: str, thing: Stateful, state: Encoded) -> None:
    """Make sure that each tensor of a model can be written to when it is restored.

    Raises:
        NotSavable: elements of one of them have the same memory.
    """
    if not isinstance(thing, torch.nn.Module):
        return
    for place, value in entries(state.tree, name):
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            continue
        if any(n > 1 and not step for n, step in zip(value.shape, value.stride(), strict=True)):
            raise NotSavable(
                f"{place} has elements that share memory, as expand() makes them, and PyTorch "
                "restores no such tensor of a model; make it with expand(…).clone()"
            )


def require_same_types(
    objects: Mapping[str, Stateful], noted: Mapping[str, Mapping[str, Any]], step: int
) -> None:
    """Make sure that no object gets the state of one of another type, nor of another frozen model.

    Of a model the layers are compared instead, when it is restored.

    Args:
        objects: this run's.
        noted: of the saved ones, what `notes` returned.
        step: of the checkpoint.

    Raises:
        ValueError: one of them has another type, or adapters were trained with another model.
    """
    for name, thing in objects.items():
        if isinstance(thing, Adapters):
            other = adapters.other_base(noted[name].get(_FROZEN, {}), thing.frozen)
            if other is not None:
                raise ValueError(
                    f"the checkpoint of step {step} does not fit {name} (its adapters were trained "
                    f"with another {other}); make the model below them from the same weights, in "
                    "the same dtype and with the same lora_alpha as then, or begin a new run"
                )
        saved = noted[name].get(_TYPE)
        if saved is None or isinstance(thing, torch.nn.Module) or saved == _type_of(thing):
            continue
        raise ValueError(
            f"the checkpoint of step {step} does not fit {name} (it was {saved} then, and is "
            f"{_type_of(thing)} now); make it as {saved} again, or begin a new run"
        )


def put_back(name: str, thing: Stateful, state: Any, noted: Mapping[str, Any], step: int) -> None:
    """Have an object become what it was.

    Args:
        name: of the object.
        thing: the object.
        state: what its `state_dict()` returned.
        noted: what `notes` returned.
        step: of the checkpoint.

    Raises:
        ValueError: it is a model or an optimizer that was made in another way.
    """
    if isinstance(thing, Optimizer):
        how = (
            "make it over the same parameters as then, with all of its groups before the session, "
            "also those of layers that are trained later: it leaves out what has no gradient"
        )
    elif isinstance(thing, torch.nn.Module):
        how = "make it with the same layers and sizes as then, or begin a new run"
    else:
        thing.load_state_dict(state)
        return
    try:
        if isinstance(thing, Optimizer):
            _load(thing, state)
            gradients.put_back(thing, noted.get(_GRADIENTS, ()))
        else:
            thing.load_state_dict(state)
    except (MemoryError, torch.cuda.OutOfMemoryError):
        raise  # another model would not help
    except Exception as error:
        reason = " ".join(f"{error}".split())[:_REASON] or type(error).__name__
        raise ValueError(
            f"the checkpoint of step {step} does not fit {name} ({reason}); {how}"
        ) from error


def _type_of(thing: Any) -> str:
    """Without its module, which differs between versions of a library."""
    kind = type(generator_of(thing) or thing).__name__
    inner = getattr(thing, "_schedulers", ())  # of SequentialLR and ChainedScheduler
    if isinstance(thing, Optimizer) and isinstance(getattr(thing, "optimizer", None), Optimizer):
        inner = [thing.optimizer]
    return f"{kind}({', '.join(map(_type_of, inner))})" if inner else kind


def _load(optimizer: Optimizer, state: Any) -> None:
    """Have an optimizer take a state, and what it keeps for its parameters as it was saved."""
    parameters = parameters_of(optimizer)
    groups = state.get("param_groups", ()) if isinstance(state, Mapping) else ()
    saved = [index for group in groups for index in group.get("params", ())]
    kept = dict(state["state"]) if "state" in state else {}
    if len(saved) != len(parameters) or not kept:
        optimizer.load_state_dict(state)  # in a form of its own, or it finds out what is wrong
        return
    for index, parameter in zip(saved, parameters, strict=True):
        if index in kept:
            kept[index] = _moved(kept[index], parameter.device)
    given, numbers = copy.copy(state), set(saved)
    given["state"] = {k: _guarded(v) if k in numbers else v for k, v in kept.items()}
    optimizer.load_state_dict(given)
    for index, parameter in zip(saved, parameters, strict=True):
        if index in kept and parameter in optimizer.state:
            optimizer.state[parameter] = _exact(optimizer.state[parameter], kept[index])


_COPIED = (dict, list, tuple)
"""Containers that PyTorch copies as they are, and moves the tensors in them."""


def _guarded(value: Any) -> Any:
    """A value of which PyTorch's copy is the value itself, and not one made anew of its items."""
    if type(value) is dict:
        return {key: _guarded(item) for key, item in value.items()}
    if type(value) in _COPIED:
        return type(value)(map(_guarded, value))
    if isinstance(value, torch.Tensor) or not isinstance(value, Iterable):
        return value

    class Guarded:
        """PyTorch makes a copy of what has items by `type(it)(items)`."""

        def __new__(cls, _: Any) -> Any:
            return value

        def __iter__(self) -> Any:
            return iter(())

    return object.__new__(Guarded)


def _moved(value: Any, device: torch.device, *, inside: bool = False) -> Any:
    """The same, with the tensors in containers that PyTorch does not copy where the parameter is.

    Args:
        value: as it was read; containers are changed in place.
        device: of the parameter.
        inside: whether it is in such a container.
    """
    if isinstance(value, torch.Tensor):
        return value.to(device) if inside else value
    inside = inside or type(value) not in _COPIED
    if isinstance(value, dict | list | deque):
        for key in value if isinstance(value, dict) else range(len(value)):
            value[key] = _moved(value[key], device, inside=inside)
        return value
    if isinstance(value, tuple) and type(value) is not torch.Size:
        items = [_moved(item, device, inside=inside) for item in value]
        return tuple.__new__(type(value), items)
    return value


def _exact(loaded: Any, saved: Any) -> Any:
    """What was saved, in the place where PyTorch has put it."""
    if isinstance(saved, torch.Tensor):
        if not isinstance(loaded, torch.Tensor) or loaded.dtype is saved.dtype:
            return loaded
        return saved.to(loaded.device)
    if type(saved) is dict and isinstance(loaded, dict):
        # What a class adds or renames for a newer version of it stays.
        loaded.update(
            {key: _exact(loaded[key], saved[key]) for key in loaded.keys() & saved.keys()}
        )
        return loaded
    if type(saved) in _COPIED and type(loaded) is type(saved) and len(loaded) == len(saved):
        return type(saved)(_exact(one, other) for one, other in zip(loaded, saved, strict=True))
    return saved
