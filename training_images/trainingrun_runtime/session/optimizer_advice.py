"""Tells of optimizers whose work a loss would cost, or a resumed run do otherwise."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch.nn import Module
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ..checkpoints.stateful_objects import parameters_of

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
        kept = [*objects.values()]
        for thing in objects.values():  # a wrapper has the optimizer that it saves
            kept += getattr(thing, "__dict__", {}).values()
        self._groups = [it.param_groups for it in kept if isinstance(it, Optimizer)]
        self._uncounted = 0
        self._first_steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._told = False
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
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
        if any(groups is optimizer.param_groups for groups in self._groups):
            return False
        # One that is made anew in each step, as in an inner loop, has nothing to be saved, and so
        # has one without momentum.
        lasts = step > self._first_steps.setdefault(optimizer, step)
        return (
            lasts
            and any(optimizer.state.values())
            and any(id(parameter) in self._parameters for parameter in parameters_of(optimizer))
        )
