"""Whether the exchange of gradients keeps the ranks' parameters equal from step to step.

Only then may one rank save its own for all. What cannot be seen here, such as gradients that the
training function exchanges by itself, counts as not: the last checkpoint is used then.
"""

from collections.abc import Mapping
from typing import Any

from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ..checkpoints.sharded_state import is_sharded
from ..checkpoints.stateful_objects import parameters_of

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_EXCHANGE_ALL = {
    f"{_HOOKS}default_hooks.allreduce_hook",
    f"{_HOOKS}default_hooks.fp16_compress_hook",
    f"{_HOOKS}default_hooks.bf16_compress_hook",
    f"{_HOOKS}powerSGD_hook.powerSGD_hook",
    f"{_HOOKS}powerSGD_hook.batched_powerSGD_hook",
}
"""Hooks of DistributedDataParallel after which all ranks have the same gradients."""


class GradientExchange:
    """What DistributedDataParallel and FSDP2 do for the parameters of a session's optimizers.

    Args:
        objects: of the session, by name, with their wrappers.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._models = {name: m for name, thing in objects.items() if (m := _parallel(thing))}
        self._groups = [o.param_groups for o in objects.values() if isinstance(o, Optimizer)]
        # What needs no gradient when it is wrapped is left out for ever.
        self._exchanged = {name: _exchanged(model) for name, model in self._models.items()}
        self._of_any_model = frozenset[int]().union(*self._exchanged.values())
        self.doubt: str | None = None
        """Why ranks may have parameters of their own, in a sentence without its period.

        None: they have had the same gradients in all steps."""

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
        if any(id(parameter) not in self._of_any_model for parameter in used):
            self.doubt = "an optimizer has parameters of no model in DistributedDataParallel"
        for name, model in self._models.items():
            if not self._exchanged[name].isdisjoint(map(id, used)):
                self.doubt = self.doubt or _doubt(name, model)


def _doubt(name: str, model: DistributedDataParallel) -> str | None:
    for hook, _ in getattr(model, "_comm_hooks", ()):
        if f"{hook.__module__}.{hook.__qualname__}" not in _EXCHANGE_ALL:
            return f"{name} has the hook {hook.__qualname__}, which may leave out an exchange"
    # Its last forward pass was in `no_sync()`, or computed no gradients.
    if not model.require_forward_param_sync:
        return f"an optimizer has used gradients of {name} that were not exchanged"
    return None


def _parallel(thing: Any) -> DistributedDataParallel | None:
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
