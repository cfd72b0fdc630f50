"""Whether an optimizer uses gradients that are left of a former step, which no checkpoint holds.

Gradients that are left after a step are usually cleared before the next ones are computed. Where
they are not, as with `p.grad.mul_(0.5)` in the place of `zero_grad()`, a resumed run would go on
without them. One parameter of each optimizer shows it, in the step after the first one, and in the
one after each checkpoint.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import unserializable_hook

from .encoding import NotSavable
from .gradients import AccumulatedGradients
from .sharded_state import is_sharded
from .stateful_objects import parameters_of

_LOOKED_AT = 8
"""Parameters of an optimizer, the smallest, of which one with a gradient is looked for."""


class KeptGradients:
    """Watches optimizers.

    Args:
        optimizers: those of the session, by name.
        gradients: knows when an optimizer uses its gradients.
    """

    def __init__(
        self, optimizers: Mapping[str, Optimizer], gradients: AccumulatedGradients
    ) -> None:
        self._optimizers, self._gradients = optimizers, gradients
        self._watched: dict[str, _Watched] = {}
        self._kept: tuple[str, torch.Size] | None = None
        gradients.before_use = self._used

    def watch(self) -> None:
        """A step is done: from now on, up to the optimizers' next use of their gradients."""
        for name, optimizer in self._optimizers.items():
            if name in self._watched or not self._gradients.used_by(optimizer):
                continue  # of others, they wait for their use
            left = [p for p in parameters_of(optimizer) if _can_be_watched(p)]
            left = sorted(left, key=torch.Tensor.numel)[:_LOOKED_AT]
            parameter = next((p for p in left if bool(p.grad.any())), None)
            if parameter is not None:
                self._watched[name] = _Watched(parameter)

    def require_none(self) -> None:
        """Make sure that no optimizer has used gradients of a former step.

        Raises:
            NotSavable: one has.
        """
        if self._kept is None:
            return
        name, shape = self._kept
        raise NotSavable(
            f"{name} uses gradients that are left of its former step, such as that of a parameter "
            f"of shape {tuple(shape)}, and no checkpoint holds gradients: a resumed run would go "
            "on without them; call zero_grad() in each step, and keep sums of gradients in an "
            "object of the session that has state_dict() and load_state_dict()"
        )

    def _used(self, optimizer: Optimizer) -> None:
        for name, watched in list(self._watched.items()):
            if self._optimizers[name].param_groups is not optimizer.param_groups:
                continue
            if watched.grown:
                if not watched.cleared:
                    self._kept = name, watched.parameter.shape
                watched.close()
                del self._watched[name]


class _Watched:
    """A parameter with a gradient that its optimizer has used."""

    def __init__(self, parameter: Any) -> None:
        self.parameter = parameter
        self.grown = False
        """Whether gradients were added since."""
        self.cleared = False
        """Whether they were added to none, or to zeros."""
        self._to_nothing = True
        self._handles = [
            parameter.register_hook(self._before),
            # Only where they are added: not by `torch.autograd.grad`, whose result replaces them.
            parameter.register_post_accumulate_grad_hook(self._after),
        ]

    @unserializable_hook  # type: ignore[untyped-decorator]
    def _before(self, _: Any) -> None:
        gradient = self.parameter.grad
        # While a CUDA graph is captured, no answer can be waited for.
        unknown = gradient is None or (
            gradient.is_cuda and torch.cuda.is_current_stream_capturing()
        )
        self._to_nothing = unknown or not bool(gradient.any())

    def _after(self, _: Any) -> None:
        self.grown = True
        self.cleared = self.cleared or self._to_nothing

    def close(self) -> None:
        """Watch no longer."""
        for handle in self._handles:
            handle.remove()


def _can_be_watched(parameter: Any) -> bool:
    gradient = parameter.grad
    return bool(
        gradient is not None
        and gradient.layout is torch.strided
        and parameter.is_leaf
        and parameter.requires_grad
        and not is_sharded(parameter)
        and not is_sharded(gradient)
    )
