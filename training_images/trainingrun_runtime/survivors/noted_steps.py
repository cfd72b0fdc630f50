"""Whether a rank notes the end of each step, so that it can save the last one for a lost rank.

Only where the exchange of gradients keeps the ranks' parameters equal from step to step may one
rank save its own for all. What cannot be seen here, such as gradients that the training function
exchanges by itself, counts as not: the last checkpoint is used then.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ..checkpoints.gradients import AccumulatedGradients
from ..checkpoints.sharded_state import Encoded, is_sharded
from ..checkpoints.snapshot import Position
from ..checkpoints.stateful_objects import Stateful, parameters_of
from ..fsdp_groups import fsdp_groups
from ..worker.step_consensus import UNKNOWN, StepValues
from ..worker.worker import this_worker
from .last_step import LastStep
from .watched_tensors import DOUBT, NotCovered, NotWhole

log = logging.getLogger(__name__)

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_EXCHANGE_ALL = {
    f"{_HOOKS}default_hooks.allreduce_hook",
    f"{_HOOKS}default_hooks.fp16_compress_hook",
    f"{_HOOKS}default_hooks.bf16_compress_hook",
}
"""Hooks of DistributedDataParallel after which all ranks have the same gradients, and which keep
nothing that a resumed run would lack."""


class NotedSteps:
    """The state after the last step, while this rank can save it without the others.

    Args:
        seeded: whether each step's random numbers follow from a seed; else those of a lost rank
            are lost too.
        world_size: number of ranks.
        exchange: of the gradients, which has to keep the ranks alike.
    """

    def __init__(self, *, seeded: bool, world_size: int, exchange: "GradientExchange") -> None:
        self._exchange = exchange
        self._last_step: LastStep | None = None
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
        own: Collection[str],
        layouts: Callable[[], Sequence[int]],
    ) -> None:
        """Note each step's end from now on, where that is possible.

        Args:
            objects: see `LastStep`.
            rank: of this process.
            gradients: see `LastStep`.
            replicated: see `LastStep`.
            own: names of the objects whose state is not the same on every rank.
            layouts: see the attribute; all ranks call it, or none.
        """
        if self._never or self._found_own(own):
            return
        self.layouts = layouts()
        if len(set(self.layouts)) == len(self.layouts):
            self._give_up("the state is sharded, and each rank has a part that no other one has")
            return
        if self._exchange.doubt is not None:
            self._give_up(self._exchange.doubt)
            return
        try:
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

    @property
    def no_time(self) -> bool:
        """Whether the notes have taken all the time that they may, so that the ranks leave the next
        step out: where each rank decided alone, few steps would be noted by all of them.
        """
        return self._last_step is not None and self._last_step.no_time

    def look(self, step_s: float, left_out: bool | None = None) -> int:
        """A step is done: what the ranks have to hold alike for `note`, as a digest.

        Args:
            step_s: seconds that the step took.
            left_out: whether a rank had `no_time` after the former one; None: this rank decides.

        Returns:
            0: no step's end is noted. `UNKNOWN`: this one's is not, or is in doubt.
        """
        if self._last_step is None:
            return 0
        if self._exchange.doubt is not None:
            self._give_up(self._exchange.doubt)
            return UNKNOWN
        try:
            return self._last_step.look(step_s, left_out)
        except NotCovered as reason:
            self._give_up(str(reason))
        except Exception as error:
            log.exception("the end of a step could not be noted; training goes on without")
            self._give_up(f"its end could not be noted: {error}")
        return UNKNOWN

    def note(
        self,
        position: Position,
        metrics: Mapping[str, Any],
        result: Callable[[], StepValues | None],
        *,
        compared: bool = True,
    ) -> None:
        """Keep what `look` has found.

        Args:
            position: how far the training is.
            metrics: this rank's.
            result: what the ranks agreed on in that step; None: not all have finished it.
            compared: whether the ranks exchange that digest, whose comparison is in `result`.
        """
        if self._last_step is not None:
            agreed_position = _agreed_position(position, result, self.driven, compared)
            self._last_step.note(position, metrics, agreed_position)

    def add_readers(self, states: Mapping[str, Encoded]) -> None:
        """See `LastStep.add_readers`."""
        if self._last_step is not None:
            self._last_step.add_readers(states)

    def exclude(self, own: Collection[str]) -> None:
        """A lost rank would have a state of its own of these objects."""
        self._found_own(own)

    def last(self) -> LastStep:
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


def _agreed_position(
    position: Position, result: Callable[[], StepValues | None], driven: bool, compared: bool
) -> Callable[[bool], Position | None]:
    """See `last_step.Noted`: a request to stop counts only once all ranks have it."""

    def agreed_position(doubtful: bool) -> Position | None:
        agreed = result()
        if agreed is None:
            return position if driven and not doubtful else None
        if (compared and not agreed.alike) or (doubtful and not compared):
            raise NotWhole(DOUBT)
        if agreed.stop and position.stop_at is None:
            return replace(position, stop_at=agreed.step + 1)
        return position

    return agreed_position


class ExchangesGradients:
    """Base of a session's objects that exchange gradients without DistributedDataParallel."""

    def take_exchanged(self) -> Collection[int]:
        """Parameters, by id, whose gradients all ranks have exchanged since the former call."""
        raise NotImplementedError


class GradientExchange:
    """What DistributedDataParallel and FSDP2 do for the parameters of a session's optimizers.

    Args:
        objects: of the session, by name, with their wrappers.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._models = {name: m for name, thing in objects.items() if (m := parallel(thing))}
        self._groups = [o.param_groups for o in objects.values() if isinstance(o, Optimizer)]
        # What needs no gradient when it is wrapped is left out for ever.
        self._exchanged = {name: _exchanged(model) for name, model in self._models.items()}
        self._of_any_model = frozenset[int]().union(*self._exchanged.values())
        self._fsdp = {
            name: groups
            for name, thing in objects.items()
            if isinstance(thing, Module) and (groups := [*fsdp_groups(thing)])
        }
        self._others = [o for o in objects.values() if isinstance(o, ExchangesGradients)]
        self.doubt: str | None = None
        """Why ranks may have parameters of their own, in a sentence without its period.

        None: they have had the same gradients in all steps."""
        self._advised = False

        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # A wrapper, as Accelerate's, has the very list of its optimizer.
        if not any(groups is optimizer.param_groups for groups in self._groups):
            return
        used = [
            parameter
            for parameter in parameters_of(optimizer)
            if parameter.grad is not None and not is_sharded(parameter)
        ]
        known = self._of_any_model.union(*(other.take_exchanged() for other in self._others))
        if any(id(parameter) not in known for parameter in used):
            self.doubt = "an optimizer has parameters of no model in DistributedDataParallel"
        for name, model in self._models.items():
            if not self._exchanged[name].isdisjoint(map(id, used)):
                self.doubt = self.doubt or _doubt(name, model)
            self._advise(name, model)
        for name, groups in self._fsdp.items():
            if not all(group.all_reduce_grads for group in groups):
                self.doubt = (
                    f"an optimizer has used gradients of {name} that HSDP's replicas have not "
                    "exchanged"
                )

    def _advise(self, name: str, model: DistributedDataParallel) -> None:
        kinds = (type(state).__name__ for _, state in getattr(model, "_comm_hooks", ()))
        if not self._advised and "PowerSGDState" in kinds:
            self._advised = True
            this_worker().advise(
                f"{name} has a hook with a PowerSGDState, which no checkpoint has: after a loss "
                "its sums of errors are zero and its steps count from 0 again, so that the weights "
                "are not those of an undisturbed run; use bf16_compress_hook, which keeps nothing"
            )


def _doubt(name: str, model: DistributedDataParallel) -> str | None:
    for hook, _ in getattr(model, "_comm_hooks", ()):
        if f"{hook.__module__}.{hook.__qualname__}" not in _EXCHANGE_ALL:
            return f"{name} has the hook {hook.__qualname__}, which may leave out an exchange"
    # Its last forward pass was in `no_sync()`, or computed no gradients.
    if not model.require_forward_param_sync:
        return f"an optimizer has used gradients of {name} that were not exchanged"
    return None


def parallel(thing: Any) -> DistributedDataParallel | None:
    """The wrapper for data parallelism that an object is, maybe compiled; None: it is none."""
    while not isinstance(thing, DistributedDataParallel):
        thing = getattr(thing, "_orig_mod", None)  # of `torch.compile`
        if thing is None:
            return None
    return thing


def _exchanged(model: DistributedDataParallel) -> set[int]:
    """The parameters whose gradients the model's wrapper exchanges, by id."""
    left_out = model.parameters_to_ignore
    return {
        id(parameter)
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in left_out
    }
