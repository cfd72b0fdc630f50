"""The state as of the last finished step: noted at its end, and checked when it is wanted.

Ranks that train the same model hold the same state after each step, or the same part of it. When
one of them is lost, the others still hold it, unless they have changed it since. Copying the state
after every step would cost too much, so the end of a step notes only what shows a later change (see
`watched_tensors`), and which optimizers have begun a step. What is small is copied.

Objects of other frameworks return their states later by themselves (`KeptState`): JAX's arrays
never change, and a round of boosting adds trees to the former ones. Nothing large is copied either.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.amp import GradScaler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import Optimizer

from ..checkpoints import sharded_state
from ..checkpoints.encoding import encode
from ..checkpoints.gradients import AccumulatedGradients, present
from ..checkpoints.restored_objects import notes
from ..checkpoints.snapshot import Position
from ..checkpoints.state_comparison import fingerprint
from ..checkpoints.stateful_objects import KeptState, SmallState, Stateful, generator_of
from ..checkpoints.tensor_files import Part
from ..worker.step_consensus import UNKNOWN
from .watched_tensors import CONSTANTS, Groups, NotCovered, NotWhole, WatchedTensors, settings

SHARE = 0.003
"""Of the training's time that the notes may take; beyond it a step is not noted. A note of a small
model takes 0.1 ms between steps of 100 ms, where caches are cold."""
ADVANCE_S = 0.02
"""Seconds that they may take before that."""
TOO_LONG = "notes of each step would take more than 0.3 % of the time"
GPU_S = 1.0
"""Seconds that the GPU may take to finish the step once the ranks have agreed on it."""
_SMALL = (LRScheduler, SmallState, GradScaler)
"""Objects whose state is copied at the end of each step."""


class Noted(NamedTuple):
    """What the end of a step has noted."""

    position: Position
    """How far the training was."""
    metrics: Mapping[str, Any]
    """This rank's, of that step."""
    agreed_position: Callable[[bool], Position | None]
    """The position with what the ranks agreed on in that step; None: not all have finished it.

    Its argument: whether the state counts only where the ranks were compared."""
    small: Mapping[str, Callable[[], Any]]
    """States of the objects that return theirs, encoded."""
    versions: Sequence[int] = ()
    begun: int = 0
    groups: Mapping[str, Groups] = MappingProxyType({})
    gradients: Mapping[str, Any] = MappingProxyType({})
    numbers: Sequence[Any] = ()
    doubtful: bool = False
    event: Any = None


class Taken(NamedTuple):
    """The state of an object, copied to host memory."""

    tree: Any
    """Encoded, with descriptions in place of what is sharded."""
    parts: Mapping[str, Part]
    """This rank's parts of that, by place."""
    notes: Mapping[str, Any]
    """What `restored_objects.notes` returned."""


class LastStep:
    """Notes the end of each step, and hands out its state as long as nothing has changed it.

    Where that takes no memory, the step before the last one is kept too: it is needed where a rank
    dies between its last exchange in a step and the step's end. Then it is not known whether that
    rank has asked to stop.

    Notes are made by the thread that trains; the others are called by another one.

    Args:
        objects: everything that a checkpoint holds, without wrappers.
        rank: of this process.
        gradients: of the optimizers.
        replicated: names of models whose buffers are taken from rank 0 before each forward pass.

    Raises:
        NotCovered: one of the objects may change without notice, or cannot return a former state.
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
                _require_kept_or_small(name, thing)
                self._small[name] = thing
        kept = [thing for thing in self._small.values() if isinstance(thing, KeptState)]
        for name in (*self._models, *self._optimizers) if kept else ():
            raise NotCovered(f"{name} is a {type(objects[name]).__name__}")
        if not kept and not self._optimizers:
            raise NotCovered("the session has no optimizer")
        self._length = 2 if kept and all(thing.keeps_former for thing in kept) else 1
        self._watched = WatchedTensors(self._models, self._optimizers, replicated)
        self._noted: tuple[Noted, ...] = ()
        self._former: tuple[Noted, ...] = ()
        self._seen: Noted | None = None  # by `look`
        self._first_step: int | None = None  # at whose end this was made
        self._reason = "no step was noted yet"
        self._time = NoteTime()
        gpu = self._watched.gpu
        # Made now: the first stream of a process, other than the default one, is made only when the
        # GPU has finished all that it was given, and a collective that hangs is never finished
        # (PyTorch 2.11 with CUDA 13.0).
        self._stream = None if gpu is None else torch.cuda.Stream(gpu)

    def close(self) -> None:
        """Note no further step."""
        self._noted, self._seen = (), None

    def add_readers(self, states: Mapping[str, sharded_state.Encoded]) -> None:
        """A save is about to copy these states, and waits for other ranks with them."""
        found = [
            item
            for name, state in states.items()
            for item in (
                *(value for _, value in sharded_state.entries(state.tree, name)),
                *state.shards.values(),
            )
        ]
        tensors = [item for item in found if isinstance(item, torch.Tensor)]
        self._watched.add_readers([*tensors, *map(sharded_state.held_tensor, tensors)])

    @property
    def no_time(self) -> bool:
        """Whether the notes have taken all the time that they may."""
        return self._time.used_up

    def look(self, step_s: float, left_out: bool | None = None) -> int:
        """A step is done: look at what it has changed.

        Args:
            step_s: seconds that the step took.
            left_out: whether it is not to be noted; None: that follows from `no_time`.

        Returns:
            A digest of what a rank may have changed alone: ranks that hold the same have the same
            one. `UNKNOWN`: the step's end cannot be noted, or nobody can tell.
        """
        self._seen = None
        self._time.step_done(step_s)
        if self._gradients.wait():
            # What was noted before them stays: nothing has changed it where no optimizer has begun
            # a step, and a run that begins there computes them again.
            if not self._noted or self._noted[-1].begun != self._gradients.begun:
                self._noted, self._reason = (), "gradients are accumulated over several steps"
            return UNKNOWN
        self._former = self._noted
        if self._models or self._optimizers:
            self._noted = ()  # before the copies are overwritten
        if self.no_time if left_out is None else left_out:
            self._noted, self._reason = (), TOO_LONG
            return UNKNOWN
        try:
            versions = self._watched.note()
        except NotWhole as reason:
            self._reason = str(reason)
            return UNKNOWN
        # Before the event, after which another stream reads: some of it is copied on the GPU.
        small = {name: _state_of_now(name, thing) for name, thing in self._small.items()}
        event = None
        if self._watched.gpu is not None:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._watched.gpu))
        self._seen = Noted(
            Position(),
            {},
            lambda _: None,
            small,
            versions,
            self._gradients.begun,
            {name: settings(optimizer) for name, optimizer in self._optimizers.items()},
            {name: present(optimizer) for name, optimizer in self._optimizers.items()},
            self._watched.numbers(),
            self._watched.some_moved,
            event,
        )
        found = self._alone(self._seen)
        if self._first_step is None:  # what CUDA loads now it loads once, so it does not count
            self._load_kernels(self._seen)
        else:
            self._time.noted()
        return found

    def note(
        self,
        position: Position,
        metrics: Mapping[str, Any],
        agreed_position: Callable[[bool], Position | None],
    ) -> None:
        """Keep what `look` has found, if it was whole.

        Args:
            position: how far the training is.
            metrics: this rank's.
            agreed_position: see `Noted.agreed_position`.
        """
        seen, self._seen = self._seen, None
        if seen is not None:
            if self._first_step is None:
                self._first_step = position.step
            noted = seen._replace(
                position=position, metrics=metrics, agreed_position=agreed_position
            )
            self._noted = (*self._former, noted)[-self._length :]

    def _load_kernels(self, noted: Noted) -> None:
        """Call once all that reads a step on the GPU.

        CUDA loads a kernel when it is first called, and waits meanwhile until the GPU has finished
        all that it was given: after the loss of a rank, it would wait for the collective that
        waits for that rank.
        """
        if noted.event is not None:
            self.fingerprint(noted)
            with self._beside_training(noted.event):
                for name in self._models:
                    self._watched.buffers_changed(name)
                with contextlib.suppress(NotWhole):
                    self._watched.require_untouched()

    def _alone(self, noted: Noted) -> int:
        """See `look`."""
        own = self._watched.moved_alone()
        if own is None:
            return UNKNOWN
        small: dict[str, Any] = {}
        for name, state in noted.small.items():
            thing = self._objects[name]
            if isinstance(thing, KeptState):
                small[name] = thing.alone()
                if small[name] is None:
                    return UNKNOWN
            elif not isinstance(thing, GradScaler):
                small[name] = state()
        # As text: a digest of each setting by itself would take as long as all the rest.
        return fingerprint([repr((_constants(noted.groups), noted.numbers)), small, own])

    def noted(self, step: int | None = None) -> Noted:
        """The last step that all ranks have finished, its position agreed_position.

        Args:
            step: this one alone; a later one may be noted by the time that it is asked for.

        Raises:
            NotWhole: its state was changed since, or there is no such step.
        """
        kept = [one for one in self._noted if step in (None, one.position.step)]
        for noted in kept[::-1]:
            self._compare(noted)
            if noted.event is not None and not _is_over(noted.event):
                # All that follows would wait for a collective of this step, which hangs.
                raise NotWhole(f"the GPU has not finished step {noted.position.step}")
            position = noted.agreed_position(noted.doubtful)
            if position is not None:
                with self._beside_training(noted.event):
                    self._require_untouched(noted)
                return noted._replace(position=position)
        if not kept:
            raise NotWhole(self._reason if step is None else f"step {step} is no longer kept")
        raise NotWhole(f"another rank has not finished step {kept[-1].position.step}")

    def fingerprint(self, noted: Noted) -> int:
        """A digest of what is small: survivors whose digests differ do not hold the same state."""
        groups = _constants(noted.groups)
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
        noted = next((one for one in self._noted if one.position.step == step), None)
        if noted is None:
            raise NotWhole(f"step {step} is no longer the last one")
        self._compare(noted)
        with self._beside_training(noted.event):
            states = {
                name: taken(self._state_of(name, noted), name, self._notes(name, noted))
                for name in self._objects
            }
            self._require_untouched(noted)  # last: training may have gone on meanwhile
            # After a step, data parallelism leaves each rank with buffers of its own, and rank 0's
            # count. Whether training changes them shows from the second step on: what they are
            # compared with was copied at the end of the first.
            if self._rank != 0:
                for name in self._of_rank_0():
                    if self._watched.buffers_changed(name) or (
                        step == self._first_step and self._watched.buffers(name)
                    ):
                        raise NotWhole("training changes the model's buffers, and rank 0's count")
        self._compare(noted)
        return states

    def _of_rank_0(self) -> list[str]:
        return [name for name in self._models if name in self._replicated]

    def _compare(self, noted: Noted) -> None:
        self._require_kept(noted)
        if noted.begun != self._gradients.begun:
            raise NotWhole("an optimizer has begun the next step")
        changed = self._watched.versions() != noted.versions
        if changed or self._watched.numbers() != noted.numbers:
            raise NotWhole("parameters, or an optimizer's state, were changed since the last step")
        self._require_kept(noted)  # once more: a whole step may have been noted in between

    def _require_kept(self, noted: Noted) -> None:
        if all(noted is not one for one in self._noted):
            raise NotWhole(f"step {noted.position.step} is no longer the last one")

    def _require_untouched(self, noted: Noted) -> None:
        try:
            self._watched.require_untouched()
        finally:
            self._compare(noted)  # an optimizer that has begun is the better reason

    @contextlib.contextmanager
    def _beside_training(self, event: Any) -> Iterator[None]:
        """Read what the GPU had at the end of the step, also where a collective blocks it now."""
        if event is None or self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(event)
            yield

    def _state_of(self, name: str, noted: Noted) -> Any:
        """What `state_dict()` returned at the end of the step, encoded.

        Raises:
            NotWhole: an object has something now that it did not have then.
        """
        if name in self._models:
            return encode(self._watched.of_model(name), name)
        if name in self._optimizers:
            return encode(self._watched.of_optimizer(name, noted.groups[name]), name)
        return noted.small[name]()

    def _notes(self, name: str, noted: Noted) -> dict[str, Any]:
        return notes(self._objects[name], noted.gradients.get(name))


def _state_of_now(name: str, thing: Stateful) -> Callable[[], Any]:
    """What returns the state of now, encoded; made once, for its digest and the checkpoint."""
    if not isinstance(thing, KeptState):
        return _small_state(name, thing)
    state = thing.kept()
    return functools.cache(lambda: encode(state(), name))


def _constants(groups: Mapping[str, Groups]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in group.items() if isinstance(value, CONSTANTS)}
        for name in sorted(groups)
        for group in groups[name]
    ]


def taken(state: Any, name: str, noted: Mapping[str, Any]) -> Taken:
    """An encoded state, copied to host memory."""
    found = sharded_state.split(state, name)
    parts = {
        place: part._replace(local=part.local.to("cpu", copy=True))
        for place, part in sharded_state.parts(found).items()
    }
    return Taken(sharded_state.copied(found.tree), parts, noted)


def _is_over(event: Any) -> bool:
    deadline = time.monotonic() + GPU_S
    while not event.query():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class NoteTime:
    """The CPU time that this thread's notes have taken, beside the time that its steps took."""

    def __init__(self) -> None:
        self._noting = self._training = self._began = 0.0

    def step_done(self, step_s: float) -> None:
        """A step took so many seconds; what follows is its note."""
        self._training += step_s
        self._began = time.thread_time()

    @property
    def used_up(self) -> bool:
        """Whether this step is not to be noted."""
        return self._noting > SHARE * self._training + ADVANCE_S

    def noted(self) -> None:
        """The step's end is noted. What a step that is left out has taken does not count."""
        self._noting += time.thread_time() - self._began


def _require_kept_or_small(name: str, thing: Stateful) -> None:
    """Make sure that it returns former states, or is so small that each step's end copies it.

    Raises:
        NotCovered: neither.
    """
    if isinstance(thing, KeptState):
        thing.kept()
        return
    if isinstance(thing, ReduceLROnPlateau):
        raise NotCovered(f"{name} follows a metric, which may differ from rank to rank")
    if not isinstance(thing, _SMALL) and generator_of(thing) is None:
        raise NotCovered(f"{name} is a {type(thing).__name__}")


def _small_state(name: str, thing: Stateful) -> Callable[[], Any]:
    """Note the state; the result returns it encoded, later and in any thread."""
    if isinstance(thing, GradScaler):
        return _scaler_state(name, thing)
    if isinstance(thing, SmallState):
        own = thing.state_dict()
        return lambda: encode(own, name)
    state = sharded_state.copied(encode(thing.state_dict(), name))
    return lambda: state


def _scaler_state(name: str, scaler: GradScaler) -> Callable[[], Any]:
    """Its `state_dict()` waits for the GPU, where its two numbers are; these are copied there."""
    then = object.__new__(type(scaler))
    vars(then).update(vars(scaler))
    for number in ("_scale", "_growth_tracker"):
        if (tensor := getattr(scaler, number, None)) is not None:  # made when it first scales
            setattr(then, number, tensor.detach().clone())
    return lambda: encode(dict(then.state_dict()), name)
