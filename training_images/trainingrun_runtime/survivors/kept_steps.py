"""The states after the last finished steps, where the objects can return them later by themselves.

Later steps leave these states as they were: JAX's arrays never change, and a round of boosting adds
trees to the former ones. So the end of a step notes what to ask for, and copies nothing. It is
`last_step` for objects other than PyTorch's, which are changed in place.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..checkpoints.encoding import encode
from ..checkpoints.fingerprint import fingerprint
from ..checkpoints.snapshot import Position
from ..checkpoints.stateful_objects import KeptState, Stateful
from . import small_states
from .last_step import Noted, Taken, taken
from .note_time import TOO_LONG, NoteTime
from .watched_tensors import NotWhole


class KeptSteps:
    """Notes the end of each step, and hands out its state.

    Notes are made by the thread that trains; the others are called by another one.

    Args:
        objects: everything that a checkpoint holds.

    Raises:
        NotCovered: one of the objects can neither return a former state nor is small.
    """

    def __init__(self, objects: Mapping[str, Stateful]) -> None:
        self._objects = objects
        every_former = True
        for name, thing in objects.items():
            if isinstance(thing, KeptState):
                thing.kept()
                every_former = every_former and thing.keeps_former
            else:
                small_states.require_small(name, thing)
        # The one before the last is needed where a rank dies between its last exchange in a step
        # and the step's end: then it is not known whether that rank has asked to stop.
        self._length = 2 if every_former else 1
        self._noted: tuple[Noted, ...] = ()
        self._reason = "no step was noted yet"
        self._time = NoteTime()

    def close(self) -> None:
        """Note no further step."""
        self._noted = ()

    def note(
        self,
        position: Position,
        metrics: Mapping[str, Any],
        settled: Callable[[], Position | None],
        step_s: float,
    ) -> None:
        """A step is done; see `LastStep.note`."""
        self._time.step_done(step_s)
        if self._time.used_up:
            self._noted = ()
            self._reason = TOO_LONG
            return
        states = {name: _kept(name, thing) for name, thing in self._objects.items()}
        noted = Noted(position, metrics, settled, states)
        self._noted = (*self._noted, noted)[-self._length :]
        self._time.noted()

    def noted(self) -> Noted:
        """The last step that all ranks have finished, its position settled.

        Raises:
            NotWhole: it is not known of the steps that are kept.
        """
        kept = self._noted
        for noted in kept[::-1]:
            position = noted.settled()
            if position is not None:
                return noted._replace(position=position)
        if not kept:
            raise NotWhole(self._reason)
        raise NotWhole(f"another rank has not finished step {kept[-1].position.step}")

    def fingerprint(self, noted: Noted) -> int:
        """A digest of the state: survivors whose digests differ do not hold the same one.

        Raises:
            NotWhole: the state is no longer there.
        """
        return fingerprint({name: state() for name, state in noted.small.items()})

    def take(self, step: int) -> dict[str, Taken]:
        """The states of all objects after that step.

        Raises:
            NotWhole: it is kept no longer, or its state is no longer there.
        """
        for noted in self._noted:
            if noted.position.step == step:
                return {name: taken(state(), name) for name, state in noted.small.items()}
        raise NotWhole(f"step {step} is no longer one of the last")


def _kept(name: str, thing: Stateful) -> Callable[[], Any]:
    """What returns the state of now, encoded; made once, for its digest and the checkpoint."""
    if not isinstance(thing, KeptState):
        return small_states.copied(name, thing)
    state = thing.kept()
    return functools.cache(lambda: encode(state(), name))
