"""Whether an optimizer uses gradients that are left of a former step, which no checkpoint holds.

Gradients that are left after a step are usually cleared before the next ones are computed. Where
they are not, as with `p.grad.mul_(0.5)` in the place of `zero_grad()`, a resumed run would go on
without them. One parameter of each optimizer shows it, in the step after the first one, and in the
one after each checkpoint. So it does where gradients are computed after the optimizer's step, for
its next one, and nothing else is written to them by then.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.hooks import unserializable_hook

from .encoding import NotSavable
from .gradients import AccumulatedGradients, Gradient, is_new, noted
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
        self._smallest: dict[str, list[Any]] = {}
        self._after_use: dict[str, dict[int, Gradient]] = {}
        self._kept: tuple[str, torch.Size] | None = None
        gradients.before_use = self._used
        register_optimizer_step_post_hook(self._stepped)

    def watch(self) -> None:
        """A step is done: from now on, up to the optimizers' next use of their gradients."""
        for name, optimizer in self._optimizers.items():
            if name in self._watched or not self._gradients.used_by(optimizer):
                continue  # of others, they wait for their use
            left = _smallest(p for p in parameters_of(optimizer) if _can_be_watched(p))
            parameter = next((p for p in left if bool(p.grad.any())), None)
            if parameter is not None:
                # Whether it was written to since is known of some.
                known = any(parameter is p for p in self._smallest.get(name, ()))
                late = known and is_new(parameter, self._after_use[name])
                self._watched[name] = _Watched(parameter, late)

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
            "on without them; in each step call zero_grad() and backward() before "
            "optimizer.step(), and keep sums of gradients in an object of the session that has "
            "state_dict() and load_state_dict()"
        )

    def _used(self, optimizer: Optimizer) -> None:
        for name, watched in list(self._watched.items()):
            if self._optimizers[name].param_groups is not optimizer.param_groups:
                continue
            if watched.grown or watched.late_and_same():
                if not watched.cleared:
                    self._kept = name, watched.parameter.shape
                watched.close()
                del self._watched[name]

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # After the step, in which the optimizer may scale its gradients in place.
        for name, known in self._optimizers.items():
            if known.param_groups is optimizer.param_groups:
                if name not in self._smallest:
                    self._smallest[name] = _smallest(filter(_is_plain, parameters_of(optimizer)))
                self._after_use[name] = noted(p for p in self._smallest[name] if p.grad is not None)


class _Watched:
    """A parameter with a gradient that its optimizer has used.

    Args:
        parameter: the one.
        late: whether that gradient is another one than was used, or was written to since. Of one
            that was not nothing is known: PyTorch sees no write of a CUDA graph that is replayed.
    """

    def __init__(self, parameter: Any, late: bool) -> None:
        self.parameter = parameter
        self._then = noted([parameter])
        self._late = parameter.grad.detach().clone() if late else None
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

    def late_and_same(self) -> bool:
        """Whether it was computed after its optimizer's step, and nothing has changed it since."""
        gradient = self.parameter.grad
        if self._late is None or gradient is None or is_new(self.parameter, self._then):
            return False
        return not _is_captured(gradient) and torch.equal(gradient, self._late)

    @unserializable_hook  # type: ignore[untyped-decorator]
    def _before(self, _: Any) -> None:
        gradient = self.parameter.grad
        unknown = gradient is None or _is_captured(gradient)
        self._to_nothing = unknown or not bool(gradient.any())

    def _after(self, _: Any) -> None:
        self.grown = True
        self.cleared = self.cleared or self._to_nothing

    def close(self) -> None:
        """Watch no longer."""
        for handle in self._handles:
            handle.remove()


def _is_captured(gradient: torch.Tensor) -> bool:
    """Whether a CUDA graph is captured: no answer can be waited for."""
    return bool(gradient.is_cuda and torch.cuda.is_current_stream_capturing())


def _smallest(parameters: Iterable[Any]) -> list[Any]:
    return sorted(parameters, key=torch.Tensor.numel)[:_LOOKED_AT]


def _can_be_watched(parameter: Any) -> bool:
    gradient = parameter.grad
    return bool(
        gradient is not None
        and gradient.layout is torch.strided
        and _is_plain(parameter)
        and not is_sharded(gradient)
    )


def _is_plain(parameter: Any) -> bool:
    return bool(parameter.is_leaf and parameter.requires_grad and not is_sharded(parameter))
