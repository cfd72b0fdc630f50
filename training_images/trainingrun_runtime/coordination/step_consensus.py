"""What all ranks agree on at each step, without making any of them wait."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum, auto
from typing import Any

import torch
import torch.distributed as dist

from ..checkpoints.fingerprint import fingerprint


class Place(IntEnum):
    """Where in the training function a rank is when it gives its numbers."""

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


class RanksDisagree(RuntimeError):
    """The ranks of a run are at different places of the training function."""


@dataclass(frozen=True)
class Agreed:
    """The largest of all ranks' numbers."""

    order: int = 0
    """What is to be done, the larger the more urgent."""
    busy: bool = False
    """Whether any rank still uploads a checkpoint."""
    stop: bool = False
    """Whether any rank wants the training to end."""
    changed: bool = False
    """Whether any rank's state is another than the last checkpoint's."""
    step: int = 0
    """Steps done when the ranks gave these numbers."""


class Agreement:
    """The largest of the ranks' numbers, one step late.

    A notice reaches one pod, yet all ranks must make the checkpoint after the same step. Each step
    starts an asynchronous all-reduce of a few bytes and reads the former step's: by then it has
    long arrived, so the step does not get slower. It has a gloo group of its own: it never mixes
    with the training's collectives, and needs no accelerator.

    Args:
        timeout_s: seconds after which a rank that waits for the others fails.
    """

    def __init__(self, timeout_s: float) -> None:
        alone = not dist.is_initialized() or dist.get_world_size() == 1
        self._group: Any = (
            None if alone else dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        )
        self._pending: tuple[Any, torch.Tensor] | None = None
        self._last = Agreed()

    def exchange(self, place: Place, mine: Agreed) -> Agreed:
        """Give this rank's numbers; get all ranks' largest ones of the former call.

        Raises:
            RanksDisagree: a rank was at another place then, or after another step.
        """
        former = self.settle()
        self._start(place, mine)
        return former

    def agree(self, place: Place, mine: Agreed) -> Agreed:
        """Give this rank's numbers, and wait for all ranks' largest ones of this call.

        Raises:
            RanksDisagree: a rank is at another place, or after another step.
        """
        self.settle()
        self._start(place, mine)
        return self.settle()

    def settle(self) -> Agreed:
        """Wait for the call under way; what was agreed last."""
        if self._pending is not None:
            work, numbers = self._pending
            self._pending = None
            if work is not None:
                work.wait()
            order, busy, stop, changed, step, least_step, place, least_place = numbers.tolist()
            if (step, place) != (-least_step, -least_place):
                raise RanksDisagree(
                    "the ranks are at different places of the training function: "
                    f"{_between(_PLACES[Place(-least_place)], _PLACES[Place(place)])}, with "
                    f"{_between(-least_step, step)} steps done; every rank must do the same steps "
                    "and call session.save() at the same place, and session.stop() ends the loop "
                    "of all of them"
                )
            self._last = Agreed(order, bool(busy), bool(stop), bool(changed), step)
        return self._last

    def forget(self) -> None:
        """What was agreed is done; do not do it again at the next step."""
        self.settle()
        self._last = Agreed()

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Every rank's numbers, by rank; they are equally many everywhere."""
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

    def wait_for_all(self) -> None:
        """Return once every rank is here."""
        if self._group is not None:
            dist.barrier(self._group)

    def _start(self, place: Place, mine: Agreed) -> None:
        # The largest of negative numbers is the least: ranks that differ are seen.
        step = [mine.step, -mine.step, place, -place]
        numbers = [mine.order, int(mine.busy), int(mine.stop), int(mine.changed), *step]
        tensor, work = torch.tensor(numbers, dtype=torch.int64), None
        if self._group is not None:
            work = dist.all_reduce(tensor, dist.ReduceOp.MAX, self._group, async_op=True)
        self._pending = (work, tensor)


_PLACES = {
    Place.STEP: "in a loop",
    Place.BEGIN: "before a loop",
    Place.END: "after a loop",
    Place.EPOCH: "after an epoch",
    Place.SAVE: "in session.save()",
    Place.DONE: "at the end of the function",
}


def _between(one: object, other: object) -> str:
    return f"{one}" if one == other else f"{one} and {other}"
