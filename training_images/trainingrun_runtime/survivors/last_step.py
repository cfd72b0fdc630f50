"""The state as of the last finished step: noted at its end, and checked when it is wanted.

Ranks that train the same model hold the same state after each step, or the same part of it. When
one of them is lost, the others still hold it, unless they have changed it since. Copying the state
after every step would cost too much, so the end of a step notes only what shows a later change (see
`watched_tensors`), and which optimizers have begun a step. What is small is copied. Objects of
other frameworks return their states by themselves: see `kept_steps`.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import Optimizer

from ..checkpoints import sharded_state, snapshot
from ..checkpoints.accumulated_gradients import AccumulatedGradients
from ..checkpoints.encoding import encode
from ..checkpoints.fingerprint import fingerprint
from ..checkpoints.present_gradients import KEY, present
from ..checkpoints.snapshot import Position
from ..checkpoints.stateful_objects import Stateful
from ..checkpoints.tensor_files import Part
from . import small_states
from .note_time import TOO_LONG, NoteTime
from .watched_tensors import CONSTANTS, Groups, NotCovered, NotWhole, WatchedTensors, settings

GPU_S = 1.0
"""Seconds that the GPU may take to finish the step once the ranks have agreed on it."""


class Noted(NamedTuple):
    """What the end of a step has noted."""

    position: Position
    """How far the training was."""
    metrics: Mapping[str, Any]
    """This rank's, of that step."""
    settled: Callable[[], Position | None]
    """The position with what the ranks agreed on in that step; None: not all have finished it."""
    small: Mapping[str, Callable[[], Any]]
    """States of the objects that return theirs, encoded."""
    versions: Sequence[int] = ()
    begun: int = 0
    groups: Mapping[str, Groups] = MappingProxyType({})
    gradients: Mapping[str, Any] = MappingProxyType({})
    event: Any = None


class Taken(NamedTuple):
    """The state of an object, copied to host memory."""

    tree: Any
    """Encoded, with descriptions in place of what is sharded."""
    parts: Mapping[str, Part]
    """This rank's parts of that, by place."""


class LastStep:
    """Notes the end of each step, and hands out its state as long as nothing has changed it.

    Notes are made by the thread that trains; the others are called by another one.

    Args:
        objects: everything that a checkpoint holds, without wrappers.
        rank: of this process.
        gradients: of the optimizers.
        replicated: names of models whose buffers are taken from rank 0 before each forward pass.

    Raises:
        NotCovered: one of the objects may change without notice.
    """

    def __init__(
        self,
        objects: Mapping[str, Stateful],
        rank: int,
        gradients: AccumulatedGradients,
        replicated: Collection[str] = (),
    ) -> None:
        self._objects, self._rank, self._replicated = objects, rank, replicated
        self._gradients = gradients
        self._models: dict[str, torch.nn.Module] = {}
        self._optimizers: dict[str, Optimizer] = {}
        self._small: dict[str, Stateful] = {}
        for name, thing in objects.items():
            if isinstance(thing, torch.nn.Module):
                self._models[name] = thing
            elif isinstance(thing, Optimizer):
                self._optimizers[name] = thing
            else:
                small_states.require_small(name, thing)
                self._small[name] = thing
        if not self._optimizers:
            raise NotCovered("the session has no optimizer")
        self._watched = WatchedTensors(self._models, self._optimizers)
        self._noted: Noted | None = None
        self._reason = "no step was noted yet"
        self._time = NoteTime()

    def close(self) -> None:
        """Note no further step."""
        self._noted = None

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
        self._time.step_done(step_s)
        if self._gradients.wait():
            # What was noted before them stays: nothing has changed it where no optimizer has begun
            # a step, and a run that begins there computes them again.
            if self._noted is None or self._noted.begun != self._gradients.begun:
                self._noted, self._reason = None, "gradients are accumulated over several steps"
            return
        self._noted = None  # before the copies are overwritten
        if self._time.used_up:
            self._reason = TOO_LONG
            return
        try:
            versions = self._watched.note()
        except NotWhole as reason:
            self._reason = str(reason)
            return
        event = None
        if self._watched.gpu is not None:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._watched.gpu))
        self._noted = Noted(
            position,
            metrics,
            settled,
            {name: small_states.copied(name, thing) for name, thing in self._small.items()},
            versions,
            self._gradients.begun,
            {name: settings(optimizer) for name, optimizer in self._optimizers.items()},
            {name: present(optimizer) for name, optimizer in self._optimizers.items()},
            event,
        )
        self._time.noted()

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
        with self._beside_training(noted.event):
            self._require_untouched(noted)
        return noted._replace(position=position)

    def fingerprint(self, noted: Noted) -> int:
        """A digest of what is small: survivors whose digests differ do not hold the same state."""
        groups = [
            {key: value for key, value in group.items() if isinstance(value, CONSTANTS)}
            for name in sorted(noted.groups)
            for group in noted.groups[name]
        ]
        with self._beside_training(noted.event):
            small = {name: state() for name, state in noted.small.items()}
            buffers = [
                self._watched.buffers(name) for name in self._models if name not in self._replicated
            ]
            # Ranks that were alike at the last checkpoint may train alone since.
            found = {"groups": groups, "small": small, "buffers": buffers}
            return fingerprint({**found, "parameters": self._watched.samples()})

    def take(self, step: int) -> dict[str, Taken]:
        """The states of all objects after that step.

        Raises:
            NotWhole: it is no longer the last step, or its state was changed since.
        """
        noted = self._noted
        if noted is None or noted.position.step != step:
            raise NotWhole(f"step {step} is no longer the last one")
        self._compare(noted)
        with self._beside_training(noted.event):
            states = {name: taken(self._state_of(name, noted), name) for name in self._objects}
            self._require_untouched(noted)  # last: training may have gone on meanwhile
            # After a step, data parallelism leaves each rank with buffers of its own, and rank 0's
            # count.
            if self._rank != 0 and any(map(self._watched.buffers_changed, self._of_rank_0())):
                raise NotWhole("training changes the model's buffers, and rank 0's count")
        self._compare(noted)
        return states

    def _of_rank_0(self) -> list[str]:
        return [name for name in self._models if name in self._replicated]

    def _compare(self, noted: Noted) -> None:
        if noted is not self._noted:
            raise NotWhole(f"step {noted.position.step} is no longer the last one")
        if noted.begun != self._gradients.begun:
            raise NotWhole("an optimizer has begun the next step")
        if self._watched.versions() != noted.versions:
            raise NotWhole("parameters, or an optimizer's state, were changed since the last step")
        if noted is not self._noted:  # once more: a whole step may have been noted in between
            raise NotWhole(f"step {noted.position.step} is no longer the last one")

    def _require_untouched(self, noted: Noted) -> None:
        try:
            self._watched.require_untouched()
        finally:
            self._compare(noted)  # an optimizer that has begun is the better reason

    @contextlib.contextmanager
    def _beside_training(self, event: Any) -> Iterator[None]:
        """Read what the GPU had at the end of the step, also where a collective blocks it now."""
        if event is None:
            yield
            return
        stream = torch.cuda.Stream(self._watched.gpu)
        with torch.cuda.stream(stream):
            stream.wait_event(event)
            yield

    def _state_of(self, name: str, noted: Noted) -> Any:
        """What `state_dict()` returned at the end of the step, encoded.

        Raises:
            NotWhole: an object has something now that it did not have then.
        """
        if name in self._models:
            return encode(self._watched.of_model(name), name)
        if name in self._optimizers:
            state = self._watched.of_optimizer(name, noted.groups[name])
            return encode({**state, KEY: noted.gradients[name]}, name)
        return noted.small[name]()


def taken(state: Any, name: str) -> Taken:
    """An encoded state, copied to host memory."""
    found = sharded_state.split(state, name)
    parts = sharded_state.in_host_memory(sharded_state.parts(found))
    return Taken(snapshot.copied(found.tree), parts)


def _is_over(event: Any) -> bool:
    deadline = time.monotonic() + GPU_S
    while not event.query():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
