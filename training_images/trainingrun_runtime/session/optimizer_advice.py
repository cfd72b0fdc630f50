"""Tells of optimizers whose work a loss would cost, or a resumed run do otherwise."""

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch.nn import Module
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ..checkpoints.stateful_objects import optimizers_in, parameters_of

log = logging.getLogger(__name__)

UNCOUNTED_STEPS = 10
"""So many before the session's first loop, which counts them, are more than a try."""


class OptimizerAdvice:
    """Watches each optimizer of this process; tells of a kind of mistake once.

    Args:
        objects: of the session, by name.
        loop_step: step of the session, once one of its loops has begun.
        tell: gets a sentence without its period.
    """

    def __init__(
        self,
        objects: Mapping[str, Any],
        loop_step: Callable[[], int | None],
        tell: Callable[[str], None],
    ) -> None:
        self._loop_step, self._tell = loop_step, tell
        self._parameters = {
            id(parameter)
            for thing in objects.values()
            if isinstance(thing, Module)
            for parameter in thing.parameters()
        }
        self._saved = [*optimizers_in(objects).values()]
        self._uncounted = 0
        self._first_steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._told = False
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        try:
            self._look_at(optimizer)
        except Exception:  # an optimizer of one's own may keep anything; its step was done
            log.debug("no advice on a %s", type(optimizer).__name__, exc_info=True)

    def _look_at(self, optimizer: Optimizer) -> None:
        step = self._loop_step()
        if step is None:
            self._uncounted += 1
            if self._uncounted == UNCOUNTED_STEPS:
                self._tell(
                    f"{UNCOUNTED_STEPS} steps of an optimizer were done before the session's first "
                    "loop, and none of them is counted or saved, so a loss costs all of them; loop "
                    "over session.steps(n) or session.batches(loader)"
                )
        elif not self._told and self._loses(optimizer, step):
            self._told = True
            self._tell(
                f"the session has a model and not its {type(optimizer).__name__}, which begins "
                "without its state after a loss, so that the weights are not those of an "
                "undisturbed run; pass it: Session(…, optimizer=optimizer)"
            )

    def _loses(self, optimizer: Optimizer, step: int) -> bool:
        # A wrapper, as Accelerate's, has the very list of its optimizer.
        if any(it.param_groups is optimizer.param_groups for it in self._saved):
            return False
        # One that is made anew in each step, as in an inner loop, has nothing to be saved, and so
        # has one without momentum.
        lasts = step > self._first_steps.setdefault(optimizer, step)
        return (
            lasts
            and any(map(_holds_something, optimizer.state.values()))
            and any(id(parameter) in self._parameters for parameter in parameters_of(optimizer))
        )


def _holds_something(state: Any) -> bool:
    """Whether what an optimizer keeps for a parameter, or under a name, is more than nothing.

    The truth of a tensor is not asked for: one of several elements has none.
    """
    kept = state.values() if isinstance(state, Mapping) else [state]
    return any(value is not None for value in kept)
