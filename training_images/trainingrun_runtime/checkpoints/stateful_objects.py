"""The objects of a session: which ones can be restored, and how their state is read and set."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from .adapters import Adapters, has_adapters
from .sharded_state import is_sharded

_DEEPSPEED = "DeepSpeed"
_SHARDED = {
    "FullyShardedDataParallel": "FSDP",
    "ShardedTensor": "its parameters are ShardedTensors",
    "ZeroRedundancyOptimizer": "ZeroRedundancyOptimizer",
    "DeepSpeedEngine": _DEEPSPEED,
    "DeepSpeedOptimizer": _DEEPSPEED,
}
"""Class names of what each rank holds only a part of, in a form that a session cannot save."""
_MOST_ITEMS = 10_000
"""A longer list or dict is one of samples, and is not looked through."""


class Stateful(Protocol):
    """A model, an optimizer, a scheduler, a data loader: anything that can be restored."""

    def state_dict(self) -> Mapping[str, Any]:
        """Everything that makes it what it is now."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Become what `state` says."""
        ...


class SmallState:
    """Base of objects with `state_dict` whose state is a few numbers, the same on every rank.

    It is asked for at each step's end, so that it does not keep another rank from saving the last
    step of a lost one. To take little time it is not copied: each `state_dict()` returns a new
    dict, and what is in it is never changed.
    """


class KeptState:
    """Base of objects with `state_dict` that can return the state of an earlier step later on.

    Where all objects of a session are such ones, or small, a rank can save the last step for a lost
    one: see `last_step.LastStep`.
    """

    keeps_former = False
    """Whether the state of the step before the last one takes no further memory."""

    def kept(self) -> Callable[[], Mapping[str, Any]]:
        """Called at a step's end, where it takes little time and copies nothing that is large.

        The result returns what `state_dict()` would have returned then. It is called in another
        thread, while the one that trains may hang in the next step; and raises `NotWhole` where
        that state is no longer there.

        Raises:
            NotCovered: such a state cannot be had later.
        """
        raise NotImplementedError

    def alone(self) -> Any:
        """What a rank may have changed alone, as plain data; of ranks that are alike it is equal.

        Called after `kept`. None: nobody can tell, and no other rank's state may stand for it.
        """
        return None


class NotRestorable(TypeError):
    """A session was given an object that it cannot restore."""


class _TorchGenerator:
    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def state_dict(self) -> Mapping[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Any) -> None:
        self.generator.set_state(state["generator"])


class _NumpyGenerator:
    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def state_dict(self) -> Mapping[str, Any]:
        return dict(self.generator.bit_generator.state)

    def load_state_dict(self, state: Any) -> None:
        self.generator.bit_generator.state = state


def generator_of(thing: Stateful) -> torch.Generator | np.random.Generator | None:
    """The generator of random numbers that a session restores here; None: it is something else."""
    return thing.generator if isinstance(thing, _TorchGenerator | _NumpyGenerator) else None


def restorable(objects: Mapping[str, Any]) -> dict[str, Stateful]:
    """The objects as a session restores them, without wrappers.

    Raises:
        NotRestorable: with one sentence: which object, why, and what to do.
    """
    found = {}
    for name, thing in objects.items():
        how = _sharded(thing)
        if how is not None:
            raise NotRestorable(
                f"{name} is sharded ({how}): each rank holds a part of it, and a session saves "
                f"the parts of DTensors only; {_instead(how)}"
            )
        found[name] = _with_state(name, bare(thing))
    return found


def bare(thing: Any) -> Any:
    """Without the wrappers of data parallelism and `torch.compile`; of PEFT what is trained.

    A checkpoint then fits any number of workers, compiled or not.
    """
    while True:
        if isinstance(thing, DistributedDataParallel):
            thing = thing.module
        elif type(thing).__name__ == "OptimizedModule" and hasattr(thing, "_orig_mod"):
            thing = thing._orig_mod
        else:
            return Adapters(thing) if has_adapters(thing) else thing


def replicated(thing: Any) -> bool:
    """Whether data parallelism keeps it the same on all ranks, its buffers too, as rank 0 has them.

    What differs nonetheless, such as the running means of a batch norm, is taken from rank 0 before
    each forward pass.
    """
    while not isinstance(thing, DistributedDataParallel):
        inner = getattr(thing, "_orig_mod", None)
        if inner is None:
            return False
        thing = inner
    return bool(thing.broadcast_buffers)


def parameters_of(optimizer: Optimizer) -> list[Any]:
    """Its parameters, in the order in which its state numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def optimizers_in(objects: Mapping[str, Any]) -> dict[str, Optimizer]:
    """PyTorch's optimizers among the objects and in their attributes, by name; each of them once.

    One in an attribute, as of a class that does the steps of several, is named by its place, such
    as `optimizer.muon` or `optimizer.each[0]`. A scheduler does not save the optimizer that it has.
    """
    found = {name: it for name, it in objects.items() if isinstance(it, Optimizer)}
    for name, thing in objects.items():
        if not isinstance(thing, LRScheduler):
            for place, it in _attributes(thing):
                if isinstance(it, Optimizer):
                    found.setdefault(f"{name}{place}", it)
    known = dict[int, Any]()  # by id; a list that a property makes anew has to stay for that
    once = {}
    for name, it in found.items():
        # A wrapper that is an optimizer itself, as Accelerate's, has the very list of its own one.
        groups = it.param_groups
        if id(it) not in known and id(groups) not in known:
            known[id(it)], known[id(groups)] = it, groups
            once[name] = it
    return once


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """An object's attributes, and what is in lists, tuples and dicts among them, by place."""
    for name, value in [*getattr(thing, "__dict__", {}).items()]:
        yield f".{name}", value
        if isinstance(value, list | tuple | dict) and len(value) <= _MOST_ITEMS:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for number, (key, item) in enumerate([*items]):
                # Not a tensor's, as of one optimizer for each parameter: it would be long.
                yield f".{name}[{key if isinstance(key, str) else number!r}]", item


def without_scheduler(objects: Mapping[str, Stateful]) -> list[str]:
    """Names of optimizers whose learning rates are set by a scheduler that is not saved with them.

    Such a scheduler counts from 0 again in a resumed run, beside rates that were restored: a
    warm-up then ends at a tenth of the rate that it was to reach (seen with PyTorch 2.13).
    A scheduler marks the `step` of its optimizer; ReduceLROnPlateau does not, and is not seen.
    """
    kept = [*objects.values()]
    for thing in objects.values():  # of a framework's wrapper, too
        kept += (held for _, held in _attributes(thing))
    optimizers = {id(it.optimizer) for it in kept if isinstance(it, LRScheduler)}
    return [
        name
        for name, optimizer in optimizers_in(objects).items()
        if getattr(optimizer.step, "_wrapped_by_lr_sched", False)
        and id(optimizer) not in optimizers
    ]


def holds_shards(thing: Any) -> bool:
    """Whether a model or an optimizer has DTensors, of which each rank holds a part."""
    return any(is_sharded(part) for part in _parts(thing))


def _with_state(name: str, thing: Any) -> Stateful:
    if isinstance(thing, torch.Generator):
        return _TorchGenerator(thing)
    if isinstance(thing, np.random.Generator):
        return _NumpyGenerator(thing)
    lacks = [m for m in ("state_dict", "load_state_dict") if not callable(getattr(thing, m, None))]
    if lacks:
        instead = instead_of_loader(thing) or "leave it out, or pass an object that has both"
        raise NotRestorable(
            f"{instead}: {name} is a {type(thing).__name__}, which has no "
            f"{' and no '.join(lacks)}, so a session cannot bring it back"
        )
    return thing  # type: ignore[no-any-return]


def instead_of_loader(thing: Any) -> str | None:
    """What to make in the place of a data loader that has no state; None: it is none."""
    kinds = [kind.__name__ for kind in type(thing).__mro__]
    if "_WrappedDataLoader" in kinds:  # of Ray
        return "make ResumableDataLoader(dataset, …) instead of prepare_data_loader(DataLoader(…))"
    if isinstance(thing, torch.utils.data.DataLoader):
        return "make ResumableDataLoader(dataset, …) instead of DataLoader(dataset, …)"
    return None


def _instead(how: str) -> str:
    """What to do about an object that is spread over the ranks in that way."""
    if how == _DEEPSPEED:
        return (
            "in a loop of your own, make the session with trainingrun_runtime.frameworks.deepspeed."
            "prepared_session(engine), or leave the session out and save with "
            "engine.save_checkpoint and ray.train.report"
        )
    return (
        "shard the model with torch.distributed.fsdp.fully_shard (FSDP2), wrap it with ray.train."
        "torch.prepare_model (DistributedDataParallel), or leave the session out and save every "
        "rank's part with torch.distributed.checkpoint and ray.train.report"
    )


def _sharded(thing: Any) -> str | None:
    """How an object is spread over the ranks; None: it is whole, or made of DTensors."""
    for part in _parts(thing):
        for kind in type(part).__mro__:
            if kind.__name__ in _SHARDED:
                return _SHARDED[kind.__name__]
    return None


def _parts(thing: Any) -> Iterator[Any]:
    yield thing
    if isinstance(thing, torch.nn.Module):
        yield from thing.modules()
        yield from thing.parameters()
        yield from thing.buffers()
    for group in getattr(thing, "param_groups", ()):
        yield from group["params"]
