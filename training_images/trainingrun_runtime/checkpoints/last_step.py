"""The state as of the last finished step: noted at its end, and checked when it is wanted.

Ranks that train the same model hold the same state after each step. When one of them is lost, the
others still hold it, unless they have changed it since. Copying the state after every step would
cost too much, so the end of a step notes only what shows a later change: the version counter of
each parameter and of each tensor of an optimizer, and which optimizers have begun a step. What the
forward pass changes (buffers), and what is small, is copied.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from ..data.resumable_loader import ResumableDataLoader
from . import snapshot
from .encoding import encode
from .fingerprint import fingerprint
from .snapshot import Position
from .stateful_objects import SmallState, Stateful, generator_of, holds_shards

SHARE = 0.001
"""Of the training's time that the notes may take; beyond it a step is not noted."""
ADVANCE_S = 0.02
"""Seconds that they may take before that."""
LARGEST_COPY = 64 * 2**20
"""Bytes of buffers that are copied at the end of a step."""
GPU_S = 1.0
"""Seconds that the GPU may take to finish the step once the ranks have agreed on it."""
PROBES, PROBE = 16, 64
"""Parameters of which a few elements are copied, and how many: an assignment to `.data` changes no
version counter."""


class NotCovered(Exception):
    """The last step of such objects cannot be noted; a sentence says of which and why."""


class NotWhole(Exception):
    """This rank has no last step that it could save; a sentence says why."""


@dataclass(frozen=True)
class Noted:
    """What the end of a step has noted."""

    position: Position
    """How far the training was."""
    metrics: Mapping[str, Any]
    """This rank's, of that step."""
    settled: Callable[[], Position | None]
    """The position with what the ranks agreed on in that step; None: not all have finished it."""
    versions: Sequence[int]
    groups: Mapping[str, Sequence[Mapping[str, Any]]]
    small: Mapping[str, Any]
    event: Any


class LastStep:
    """Notes the end of each step, and hands out its state as long as nothing has changed it.

    Notes are made by the thread that trains; `noted` and `take` are called by another one.

    Args:
        objects: everything that a checkpoint holds, without wrappers.
        rank: of this process.

    Raises:
        NotCovered: one of the objects may change without notice.
    """

    def __init__(self, objects: Mapping[str, Stateful], rank: int) -> None:
        self._objects, self._rank = objects, rank
        self._models: dict[str, torch.nn.Module] = {}
        self._optimizers: dict[str, Optimizer] = {}
        self._small: dict[str, Stateful] = {}
        for name, thing in objects.items():
            if holds_shards(thing):
                raise NotCovered(
                    f"the state is sharded: each rank has a part of {name}, and none has the whole"
                )
            self._sort(name, thing)
        if not self._optimizers:
            raise NotCovered("the session has no optimizer")
        self._stepped: set[int] = set()  # optimizers that have begun a step since the last note
        self._noted: Noted | None = None
        self._reason = "no step was noted yet"
        self._spent = self._trained = 0.0
        self._parameters: dict[int, torch.Tensor] = {}
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # id -> itself, its copy
        for name, model in self._models.items():
            self._add_model(name, model)
        if sum(buffer.nbytes for buffer, _ in self._buffers.values()) > LARGEST_COPY:
            raise NotCovered("the model's buffers are too large to be copied after each step")
        self._places = [parameter.data_ptr() for parameter in self._parameters.values()]
        probed = list(self._parameters.values())
        probed = probed[:: max(1, -(-len(probed) // PROBES))]
        self._probes = [(view, view.clone()) for view in map(_some, probed)]
        self._copies = _by_kind([*self._buffers.values(), *self._probes])
        self._first = [buffer.clone() for buffer, _ in self._buffers.values()]
        self._tensors: list[torch.Tensor] = []
        self._states = -1
        self._gpu = next((t.device for t in self._parameters.values() if t.is_cuda), None)
        self._hook = register_optimizer_step_pre_hook(self._step_begins)

    def close(self) -> None:
        """Note no further step."""
        self._noted = None
        self._hook.remove()

    def note(
        self,
        position: Position,
        metrics: Mapping[str, Any],
        settled: Callable[[], Position | None],
        step_s: float,
    ) -> None:
        """A step is done.

        Args:
            position: how far the training is.
            metrics: this rank's.
            settled: see `Noted.settled`.
            step_s: seconds that the step took.
        """
        began = time.thread_time()
        self._noted = None  # before the copies are overwritten
        stepped, self._stepped = self._stepped, set()
        self._trained += step_s
        if self._spent > SHARE * self._trained + ADVANCE_S:
            self._reason = "notes of each step would take more than a thousandth of the time"
            return
        if self._accumulates(stepped):
            self._reason = "gradients are accumulated over several steps"
            return
        self._update_tensors()
        with torch.no_grad():
            for copies, originals in self._copies:
                torch._foreach_copy_(copies, originals)
        event = None
        if self._gpu is not None:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._gpu))
        self._noted = Noted(
            position,
            metrics,
            settled,
            [t._version for t in self._tensors],
            {name: _groups(optimizer) for name, optimizer in self._optimizers.items()},
            {
                name: snapshot.copied(encode(thing.state_dict(), name))
                for name, thing in self._small.items()
            },
            event,
        )
        self._spent += time.thread_time() - began

    def noted(self) -> Noted:
        """The last step, its position settled.

        Raises:
            NotWhole: its state was changed since, or not all ranks have finished the step.
        """
        noted = self._noted
        if noted is None:
            raise NotWhole(self._reason)
        self._compare(noted)
        if noted.event is not None and not _is_over(noted.event):
            # All that follows would wait for a collective of this step, which hangs.
            raise NotWhole(f"the GPU has not finished step {noted.position.step}")
        position = noted.settled()
        if position is None:
            raise NotWhole(f"another rank has not finished step {noted.position.step}")
        return replace(noted, position=position)

    def fingerprint(self, noted: Noted) -> int:
        """A digest of what is small: survivors whose digests differ do not hold the same state."""
        groups = [
            {key: value for key, value in group.items() if isinstance(value, _CONSTANTS)}
            for name in sorted(noted.groups)
            for group in noted.groups[name]
        ]
        return fingerprint({"groups": groups, "small": dict(noted.small)})

    def take(self, step: int) -> dict[str, Any]:
        """The encoded states of all objects after that step, copied to host memory.

        Raises:
            NotWhole: it is no longer the last step, or its state was changed since.
        """
        noted = self._noted
        if noted is None or noted.position.step != step:
            raise NotWhole(f"step {step} is no longer the last one")
        self._compare(noted)
        with self._beside_training(noted.event):
            states = {
                name: snapshot.copied(encode(state, name))
                for name, state in self._state_dicts(noted).items()
            }
            places = [parameter.data_ptr() for parameter in self._parameters.values()]
            same = all(torch.equal(view, copy) for view, copy in self._probes)
            if not same or places != self._places:
                raise NotWhole("parameters were changed by assignment to their data")
            # After a step, data parallelism leaves each rank with buffers of its own, and rank 0's
            # count.
            buffers = [copy for _, copy in self._buffers.values()]
            if self._rank != 0 and not all(map(torch.equal, buffers, self._first)):
                raise NotWhole("training changes the model's buffers, and rank 0's count")
        self._compare(noted)  # last: training may have gone on meanwhile
        return states

    def _sort(self, name: str, thing: Stateful) -> None:
        if isinstance(thing, torch.nn.Module):
            self._models[name] = thing
        elif isinstance(thing, Optimizer):
            self._optimizers[name] = thing
        elif isinstance(thing, ReduceLROnPlateau):
            raise NotCovered(f"{name} follows a metric, which may differ from rank to rank")
        elif isinstance(thing, _SMALL) or generator_of(thing) is not None:
            self._small[name] = thing
        else:
            raise NotCovered(f"{name} is a {type(thing).__name__}")

    def _add_model(self, name: str, model: torch.nn.Module) -> None:
        parameters = {id(p) for p in model.parameters()}
        buffers = {id(b) for b in model.buffers()}
        for key, value in model.state_dict(keep_vars=True).items():
            if id(value) in parameters:
                self._parameters[id(value)] = value
            elif id(value) in buffers:
                self._buffers[id(value)] = (value, value.detach().clone())
            else:
                raise NotCovered(f"{name} has {key} in its state, which is no parameter or buffer")

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """An optimizer changes its parameters now, or once the closure that it is given returns.

        Lightning computes the gradients in the closure, and there a survivor waits for a lost rank.
        """
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._stepped.add(id(optimizer))
            return None

        def marked() -> Any:
            value = closure()
            self._stepped.add(id(optimizer))
            return value

        if "closure" in kwargs:
            return args, {**kwargs, "closure": marked}
        return (args[0], marked, *args[2:]), kwargs

    def _accumulates(self, stepped: set[int]) -> bool:
        """Whether gradients wait for a later step: no checkpoint holds them."""
        return any(
            p.grad is not None
            for optimizer in self._optimizers.values()
            if id(optimizer) not in stepped
            for group in optimizer.param_groups
            for p in group["params"]
        )

    def _update_tensors(self) -> None:
        """The tensors whose versions count; an optimizer makes its own in its first step."""
        states = sum(len(optimizer.state) for optimizer in self._optimizers.values())
        if states == self._states:
            return
        self._states = states
        self._tensors = list(self._parameters.values())
        for optimizer in self._optimizers.values():
            for value in (*optimizer.state.values(), *_groups(optimizer)):
                self._tensors += [t for t in value.values() if isinstance(t, torch.Tensor)]

    def _compare(self, noted: Noted) -> None:
        if noted is not self._noted:
            raise NotWhole(f"step {noted.position.step} is no longer the last one")
        if self._stepped:
            raise NotWhole("an optimizer has begun the next step")
        if [t._version for t in self._tensors] != noted.versions:
            raise NotWhole("parameters, or an optimizer's state, were changed since the last step")
        if noted is not self._noted:  # once more: a whole step may have been noted in between
            raise NotWhole(f"step {noted.position.step} is no longer the last one")

    @contextlib.contextmanager
    def _beside_training(self, event: Any) -> Iterator[None]:
        """Read what the GPU had at the end of the step, also where a collective blocks it now."""
        if event is None:
            yield
            return
        stream = torch.cuda.Stream(self._gpu)
        with torch.cuda.stream(stream):
            stream.wait_event(event)
            yield

    def _state_dicts(self, noted: Noted) -> dict[str, Any]:
        """What `state_dict()` returned at the end of the step.

        Raises:
            NotWhole: an object has something now that it did not have then.
        """
        found: dict[str, Any] = {}
        for name in self._objects:
            if name in self._models:
                found[name] = self._of_model(name)
            elif name in self._optimizers:
                found[name] = self._of_optimizer(name, noted.groups[name])
            else:
                found[name] = noted.small[name]
        return found

    def _of_model(self, name: str) -> Any:
        state = self._models[name].state_dict(keep_vars=True)
        for key, value in state.items():
            if id(value) in self._buffers:
                state[key] = self._buffers[id(value)][1]
            elif id(value) not in self._parameters:
                raise NotWhole(f"{name}: {key} was replaced")
        return state

    def _of_optimizer(self, name: str, groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        state = self._optimizers[name].state_dict()
        if set(state) != {"state", "param_groups"} or len(state["param_groups"]) != len(groups):
            raise NotWhole(f"{name} has other parameters, or more than those, in its state")
        known = {id(t) for t in self._tensors}
        for values in (*state["state"].values(), *groups):
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    if id(value) not in known:
                        raise NotWhole(f"{name}: {key} was replaced")
                elif not isinstance(value, _CONSTANTS):
                    raise NotWhole(f"{name}: {key} is a {type(value).__name__}")
        now = state["param_groups"]
        if any(n.keys() - {"params"} != g.keys() for n, g in zip(now, groups, strict=True)):
            raise NotWhole(f"{name} has other settings")
        param_groups = [{**g, "params": n["params"]} for n, g in zip(now, groups, strict=True)]
        return {"state": state["state"], "param_groups": param_groups}


_SMALL = (LRScheduler, ResumableDataLoader, SmallState)
"""Whose states are copied at the end of each step."""
_CONSTANTS = (type(None), bool, int, float, complex, str, tuple, np.number)


def _is_over(event: Any) -> bool:
    deadline = time.monotonic() + GPU_S
    while not event.query():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def _some(parameter: torch.Tensor) -> torch.Tensor:
    """A view of a few elements, evenly spread; none where their memory is not in a row."""
    flat = parameter.detach()
    if not flat.is_contiguous():
        return flat.new_empty(0)
    flat = flat.view(-1)
    return flat[:: max(1, flat.numel() // PROBE)]


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
