"""What all ranks agree on at each step, without a rank waiting for another."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum, auto
from typing import Any

import torch
import torch.distributed as dist

from ..checkpoints.fingerprint import fingerprint
from .standstill import LEFT_LOOP


class Place(IntEnum):
    """Where in the training function a rank is when it contributes its values."""

    STEP = auto()
    """After a step."""
    BEGIN = auto()
    """Before the first step of a loop."""
    END = auto()
    """After a loop."""
    EPOCH = auto()
    """After an epoch."""
    SAVE = auto()
    """Where a checkpoint is made."""
    DONE = auto()
    """After the training function."""


def describe(place: Place) -> str:
    """The place in words, such as `after a loop`."""
    return _PLACES[place]


class Hold(IntEnum):
    """Whether a rank wants a checkpoint to be made after a later step; the largest applies."""

    NO = 0
    GRADIENTS = 1
    """Gradients wait for a later step of their optimizer, and a checkpoint does not hold them."""
    NO_TIME = 2
    """A pod or node ends before long."""


class RanksDisagree(RuntimeError):
    """The ranks of a run are at different places of the training function."""


@dataclass(frozen=True)
class StepValues:
    """What a rank contributes, and the result: the largest of all ranks' values."""

    command: int = 0
    """The requested `Command`; the largest of all ranks' applies."""
    busy: bool = False
    """Whether any rank still uploads a checkpoint."""
    stop: bool = False
    """Whether any rank requested the end of training."""
    changed: bool = False
    """Whether any rank's state differs from the last checkpoint's."""
    step: int = 0
    """Steps done when the ranks contributed these values."""
    hold: Hold = Hold.NO
    """Contributed where a checkpoint is about to be made."""


class StepConsensus:
    """The largest of the ranks' values, available one step later.

    A preemption notice reaches one pod, yet all ranks must make the checkpoint after the same step.
    Each step starts an asynchronous all-reduce of a few bytes and reads the result of the former
    step's, which is complete by then, so the step takes no longer. The gloo group is separate: it
    does not interfere with the training's collectives and needs no accelerator.

    Args:
        timeout_s: seconds after which a rank that waits for the others fails.
    """

    def __init__(self, timeout_s: float) -> None:
        alone = not dist.is_initialized() or dist.get_world_size() == 1
        self._group: Any = (
            None if alone else dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        )
        self._rank = 0 if alone else dist.get_rank()
        self._world_size = 1 if alone else dist.get_world_size()
        self._pending: tuple[Any, torch.Tensor] | None = None
        self._last = StepValues()

    def exchange(self, place: Place, mine: StepValues) -> StepValues:
        """Contribute this rank's values; returns the result of the former call.

        Raises:
            RanksDisagree: a rank was at another place then, or after another step.
        """
        former = self.settle()
        self._start(place, mine)
        return former

    def agree(self, place: Place, mine: StepValues) -> StepValues:
        """Contribute this rank's values, and wait for the result of this call.

        Raises:
            RanksDisagree: a rank is at another place, or after another step.
        """
        self.settle()
        self._start(place, mine)
        return self.settle()

    def settle(self) -> StepValues:
        """Wait for the call under way; returns the latest result."""
        if self._pending is not None:
            work, numbers = self._pending
            self._pending = None
            if work is not None:
                work.wait()
            *values, furthest, least = numbers.tolist()
            ahead, behind = self._decoded(furthest), self._decoded(-least)
            if ahead[1:] != behind[1:]:
                raise RanksDisagree(
                    "the ranks are at different places of the training function: "
                    f"{_said(*behind)}, and {_said(*ahead)}; every rank must do the same steps "
                    "and call session.save() at the same place, and session.stop() ends the loop "
                    "of all of them"
                )
            self._last = _values(values, ahead[1])
        return self._last

    def under_way(self) -> Callable[[], StepValues | None]:
        """Asks for the result of the call under way, also from another thread and without a wait.

        None: not every rank has contributed, or the call has failed.
        """
        pending, last = self._pending, self._last

        def result() -> StepValues | None:
            if pending is None:
                return last
            work, numbers = pending
            if work is not None and not (work.is_completed() and work.is_success()):
                return None
            *values, furthest, least = numbers.tolist()
            _, step, place = self._decoded(furthest)
            if (step, place) != self._decoded(-least)[1:]:
                return None
            return _values(values, step)

        return result

    def reset(self) -> None:
        """The result has been acted on; the next step must not act on it again."""
        self.settle()
        self._last = StepValues()

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Every rank's numbers, by rank; each rank passes equally many."""
        if self._group is None or not numbers:
            return [numbers]
        mine = torch.tensor(numbers, dtype=torch.int64)
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(every, mine, self._group)
        return [one.tolist() for one in every]

    def compare_names(self, names: Iterable[str]) -> None:
        """Make sure that every rank has the same objects.

        Raises:
            RanksDisagree: they have not.
        """
        mine = sorted(names)
        if len({tuple(each) for each in self.gather([fingerprint(mine)])}) > 1:
            raise RanksDisagree(
                f"this rank's session has {', '.join(mine) or 'no object'}, and another rank's has "
                "others; every rank must pass the same names, also where an object is its own"
            )

    def barrier(self) -> None:
        """Return once every rank has called it."""
        if self._group is not None:
            dist.barrier(self._group)

    def _decoded(self, number: int) -> tuple[int, int, Place]:
        """Rank, steps done and place."""
        position, rank = divmod(number, self._world_size)
        step, place = divmod(position, _PLACES_AT_MOST)
        return rank, step, Place(place)

    def _start(self, place: Place, mine: StepValues) -> None:
        # The maximum of negated values is the minimum: a difference between ranks is detected, and
        # one number holds step, place and rank, so that it is known of which ranks.
        here = (mine.step * _PLACES_AT_MOST + place) * self._world_size + self._rank
        values = [mine.command, mine.busy, mine.stop, mine.changed, mine.hold]
        tensor, work = torch.tensor([*values, here, -here], dtype=torch.int64), None
        if self._group is not None:
            work = dist.all_reduce(tensor, dist.ReduceOp.MAX, self._group, async_op=True)
        self._pending = (work, tensor)


def _values(numbers: list[int], step: int) -> StepValues:
    command, busy, stop, changed, hold = numbers
    return StepValues(command, bool(busy), bool(stop), bool(changed), step, Hold(hold))


_PLACES_AT_MOST = 16
_PLACES = {
    Place.STEP: "in a loop",
    Place.BEGIN: "before a loop",
    Place.END: LEFT_LOOP,
    Place.EPOCH: "after an epoch",
    Place.SAVE: "in session.save()",
    Place.DONE: "at the end of the function",
}


def _said(rank: int, step: int, place: Place) -> str:
    return f"rank {rank} is {_PLACES[place]} with {step} steps done"
