"""What all ranks agree on at each step, without a rank waiting for another."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum, auto
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..checkpoints.state_comparison import fingerprint
from ..coordinator.standstill import LEFT_LOOP


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
    COMPARE = auto()
    """Where the ranks compare their objects."""


PLACES = {
    Place.STEP: "in a loop",
    Place.BEGIN: "before a loop",
    Place.END: LEFT_LOOP,
    Place.EPOCH: "after an epoch",
    Place.SAVE: "in session.save()",
    Place.DONE: "at the end of the function",
    Place.COMPARE: "at the end of its first step, or in session.save()",
}
"""The places in words."""


class RanksDisagree(RuntimeError):
    """The ranks of a run are at different places of the training function."""


UNKNOWN = -1
"""No digest: whether the ranks hold the same is not known."""


class StepValues(NamedTuple):
    """What a rank contributes, and the result: the largest of all ranks' values."""

    command: int = 0
    """The requested `Command`; the largest of all ranks' applies."""
    busy: bool = False
    """Whether any rank still uploads a checkpoint."""
    stop: bool = False
    """Whether any rank requested the end of training."""
    step: int = 0
    """Steps done when the ranks contributed these values."""
    hold: bool = False
    """Where a checkpoint is about to be made: whether any rank has gradients that wait for a later
    step of their optimizer, and that a checkpoint does not hold."""
    no_time: bool = False
    """Whether any rank has no time to note the end of the next step."""
    state: int = 0
    """A digest of what a rank may change alone, after a step; `UNKNOWN`: it is not known."""
    alike: bool = True
    """Whether all ranks have contributed the same `state`, and know it."""


class StepConsensus:
    """The largest of the ranks' values, available one step later.

    A preemption notice reaches one pod, yet all ranks must make the checkpoint after the same step.
    Each step sends a few bytes to the other ranks and reads what they have sent after the former
    one, which has arrived by then, so the step takes little longer. It does not interfere with the
    training's collectives and needs no accelerator.

    Args:
        timeout_s: seconds after which a rank that waits for the others fails.
    """

    def __init__(self, timeout_s: float) -> None:
        self._group = _GlooGroup(timeout_s)
        self._pending: _Round | None = None
        self._last = StepValues()
        self._step = 0

    def exchange(self, place: Place, mine: StepValues) -> StepValues:
        """Contribute this rank's values; returns the result of the former call.

        Raises:
            RanksDisagree: a rank was at another place then, or after another step.
        """
        former = self.agreed()
        self._start(place, mine)
        return former

    def agree(self, place: Place, mine: StepValues) -> StepValues:
        """Contribute this rank's values, and wait for the result of this call.

        Raises:
            RanksDisagree: a rank is at another place, or after another step.
        """
        self.agreed()
        self._start(place, mine)
        return self.agreed()

    def agreed(self) -> StepValues:
        """Wait for the call under way; returns the latest result."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            every = pending.wait()
            largest = _largest(every)
            if largest is None:
                raise RanksDisagree(_disagreement(every))
            self._last = largest
        return self._last

    def under_way(self) -> Callable[[], StepValues | None]:
        """Asks for the result of the call under way, also from another thread and without a wait.

        None: not every rank has contributed, or the call has failed.
        """
        pending, last = self._pending, self._last

        def result() -> StepValues | None:
            if pending is None:
                return last
            every = pending.known()
            return None if every is None else _largest(every)

        return result

    def reset(self) -> None:
        """The result has been acted on; the next step must not act on it again."""
        self._last = StepValues(no_time=self.agreed().no_time)

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Every rank's numbers, by rank; each rank passes equally many.

        Raises:
            RanksDisagree: a rank is at another place, where it sends another number of them.
        """
        former = self.agreed()
        self.agree(Place.COMPARE, StepValues(step=self._step))
        self._last = former
        return [list(each) for each in self._group.start(numbers).wait()]

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
        self.gather([])

    def _start(self, place: Place, mine: StepValues) -> None:
        self._step = mine.step
        values = [mine.command, mine.busy, mine.stop, mine.hold, mine.no_time, mine.state]
        self._pending = self._group.start([mine.step, place, *values])


def _largest(every: Sequence[Sequence[int]]) -> StepValues | None:
    """The largest of each value; None: the ranks are at different places, or after other steps."""
    if every.count(every[0]) == len(every):  # as after nearly all steps
        largest: Iterable[int] = every[0]
    elif len({tuple(each[:2]) for each in every}) == 1:
        largest = map(max, zip(*every, strict=True))
    else:
        return None
    step, _, command, busy, stop, hold, no_time, state = largest
    alike = state != UNKNOWN and len({each[-1] for each in every}) == 1
    return StepValues(
        command, bool(busy), bool(stop), step, bool(hold), bool(no_time), state, alike
    )


def _disagreement(every: Sequence[Sequence[int]]) -> str:
    """Where the ranks with the fewest and with the most steps done are."""
    places = [tuple(each[:2]) for each in every]
    behind, ahead = (
        f"rank {places.index(place)} is {PLACES[Place(place[1])]} with {place[0]} steps done"
        for place in (min(places), max(places))
    )
    return (
        f"the ranks are at different places of the training function: {behind}, and {ahead}; "
        "every rank must do the same steps and call session.save() at the same place, and "
        "session.stop() ends the loop of all of them"
    )


class _GlooGroup:
    """A gloo group of all ranks, separate from the training's; all ranks make it.

    A rank that trains alone needs no process group.

    Args:
        timeout_s: seconds after which a rank that waits for another one fails.
    """

    def __init__(self, timeout_s: float) -> None:
        self._world_size = dist.get_world_size() if dist.is_initialized() else 1
        self._group: Any = None
        if self._world_size > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def start(self, numbers: Sequence[int]) -> "_Round":
        """Send these numbers to every other rank.

        Each passes equally many, equally often: gloo ends a process that gets other messages.

        Args:
            numbers: signed integers of 64 bits.
        """
        # One more: gloo gathers nothing where there is nothing, and the ranks do not wait.
        mine = torch.tensor([*numbers, 0], dtype=torch.int64, device="cpu")
        if self._group is None:
            return _Round(None, [mine])
        every = [torch.empty_like(mine) for _ in range(self._world_size)]
        return _Round(dist.all_gather(every, mine, self._group, async_op=True), every)


@dataclass(frozen=True)
class _Round:
    """The numbers that each rank sends once."""

    _work: Any
    _every: Sequence[torch.Tensor]

    def wait(self) -> list[Sequence[int]]:
        """Every rank's numbers, by rank.

        Raises:
            RuntimeError: a rank is lost, or silent for too long.
        """
        if self._work is not None:
            self._work.wait()
        return self._numbers()

    def known(self) -> list[Sequence[int]] | None:
        """The same without a wait, from any thread; None: not every rank's have arrived."""
        if self._work is not None:
            result = self._work.get_future()
            if not result.done():
                return None
            try:
                result.value()
            except RuntimeError:  # it has failed
                return None
        return self._numbers()

    def _numbers(self) -> list[Sequence[int]]:
        return [each.tolist()[:-1] for each in self._every]
