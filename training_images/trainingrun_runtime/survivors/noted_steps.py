"""Whether a rank notes the end of each step, so that it can save the last one for a lost rank."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..checkpoints.accumulated_gradients import AccumulatedGradients
from ..checkpoints.snapshot import Position
from ..checkpoints.stateful_objects import KeptState, Stateful
from ..worker.step_consensus import StepValues
from .gradient_exchange import GradientExchange
from .kept_steps import KeptSteps
from .last_step import LastStep
from .watched_tensors import NotCovered, NotWhole

log = logging.getLogger(__name__)


class NotedSteps:
    """The state after the last step, while this rank can save it without the others.

    Args:
        seeded: whether each step's random numbers follow from a seed; else those of a lost rank
            are lost too.
        world_size: number of ranks.
        exchange: of the gradients, which has to keep the ranks alike.
    """

    def __init__(self, *, seeded: bool, world_size: int, exchange: GradientExchange) -> None:
        self._exchange = exchange
        self._last_step: LastStep | KeptSteps | None = None
        self.layouts: Sequence[int] = ()
        """By rank, see `state_comparison.layout`: ranks with the same one hold the same part."""
        self.reason = "no step is done yet"
        """Why no step's end is noted, if none is."""
        self._never = False
        self.driven = False
        """Whether a framework's loop drives the session's: there no rank calls `stop()` on its own,
        so that a step counts also where a lost rank had not come to its end."""
        if world_size == 1:
            self._give_up("there is no other rank")
        elif not seeded:
            self._give_up("the session has no seed")

    def begin(
        self,
        objects: Mapping[str, Stateful],
        rank: int,
        gradients: AccumulatedGradients,
        replicated: Collection[str],
        own: Callable[[], set[str]],
        layouts: Callable[[], Sequence[int]],
    ) -> None:
        """Note each step's end from now on, where that is possible.

        Args:
            objects: see `LastStep`.
            rank: of this process.
            gradients: see `LastStep`.
            replicated: see `LastStep`.
            own: names of the objects whose state is not the same on every rank; all ranks call it,
                or none.
            layouts: see the attribute; likewise.
        """
        if self._never or self._found_own(own()):
            return
        self.layouts = layouts()
        if len(set(self.layouts)) == len(self.layouts):
            self._give_up("the state is sharded, and each rank has a part that no other one has")
            return
        if self._exchange.doubt is not None:
            self._give_up(self._exchange.doubt)
            return
        try:
            if any(isinstance(thing, KeptState) for thing in objects.values()):
                self._last_step = KeptSteps(objects)
            else:
                self._last_step = LastStep(objects, rank, gradients, replicated)
        except NotCovered as reason:
            self._give_up(str(reason))
        except Exception as error:
            log.exception("the steps' ends cannot be noted; training goes on without")
            self._give_up(f"its end could not be noted: {error}")

    @property
    def noting(self) -> bool:
        """Whether the ends of steps are noted."""
        return self._last_step is not None

    def note(
        self,
        position: Position,
        metrics: Mapping[str, Any],
        result: Callable[[], StepValues | None],
        step_s: float,
    ) -> None:
        """A step is done.

        Args:
            position: how far the training is.
            metrics: this rank's.
            result: what the ranks agreed on in that step; None: not all have finished it.
            step_s: seconds that the step took.
        """
        if self._last_step is None:
            return
        if self._exchange.doubt is not None:
            self._give_up(self._exchange.doubt)
            return
        try:
            settled = _settled(position, result, self.driven)
            self._last_step.note(position, metrics, settled, step_s)
        except NotCovered as reason:
            self._give_up(str(reason))
        except Exception as error:
            log.exception("the end of a step could not be noted; training goes on without")
            self._give_up(f"its end could not be noted: {error}")

    def exclude(self, own: Collection[str]) -> None:
        """A lost rank would have a state of its own of these objects."""
        self._found_own(own)

    def last(self) -> LastStep | KeptSteps:
        """The state after the last step.

        Raises:
            NotWhole: this rank does not note it; a sentence says why.
        """
        if self._last_step is None:
            raise NotWhole(self.reason)
        return self._last_step

    def _found_own(self, own: Collection[str]) -> bool:
        if own:
            self._give_up(f"each rank has its own {', '.join(sorted(own))}")
        return bool(own)

    def _give_up(self, reason: str) -> None:
        if self._last_step is not None:
            self._last_step.close()
        self._last_step, self.reason, self._never = None, reason, True


def _settled(
    position: Position, result: Callable[[], StepValues | None], driven: bool
) -> Callable[[], Position | None]:
    """See `last_step.Noted.settled`: a request to stop counts only once all ranks have it."""

    def settled() -> Position | None:
        agreed = result()
        if agreed is None:
            return position if driven else None
        if agreed.stop and position.stop_at is None:
            return replace(position, stop_at=agreed.step + 1)
        return position

    return settled
