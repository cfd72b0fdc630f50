"""Whether gradients wait for a later step of their optimizer: no checkpoint holds them."""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

RESTS_AFTER = 500
"""An optimizer that has begun no step in so many of the session's rests: its gradients may be left
over, as those of a discriminator's loss in the generator, and a checkpoint does not wait for it."""

_Gradient = tuple["weakref.ref[torch.Tensor]", int]


class AccumulatedGradients:
    """Watches optimizers, and the gradients of their parameters.

    Args:
        optimizers: those of the session.
    """

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self.begun = 0
        """Steps that the optimizers of this process have begun; an own one of the user counts."""
        self._optimizers = list(optimizers)
        # Keys are ids of lists of groups: a wrapper, as Accelerate's, has its optimizer's.
        self._since: set[int] = set()  # those that have begun one since the session's step began
        self._used: dict[int, dict[int, _Gradient]] = {}  # of those that do not in each step
        self._rested: dict[int, int] = {}
        self._hook = register_optimizer_step_pre_hook(self._begins)

    def close(self) -> None:
        """Watch no longer."""
        self._hook.remove()

    def step_begins(self) -> None:
        """The session's next step begins."""
        self._since = set()

    def step_done(self) -> None:
        """The session's step is done."""
        for optimizer in self._optimizers:
            key = id(optimizer.param_groups)
            if key not in self._since:
                self._rested[key] = self._rested.get(key, 0) + 1
                if self._new(optimizer):
                    self._used.setdefault(key, {})
                continue
            self._rested[key] = 0
            if key in self._used:
                # They may be left until the next ones are computed.
                self._used[key] = {
                    id(p): (weakref.ref(p.grad), p.grad._version)
                    for p in _with_gradients(optimizer)
                }

    def wait(self) -> bool:
        """Whether gradients wait for a later step now."""
        return any(map(self._new, self._without_step()))

    def hold_checkpoints(self) -> bool:
        """Whether a checkpoint should be made later: they wait, and for no optimizer that rests."""
        return any(
            self._new(optimizer)
            for optimizer in self._without_step()
            if self._rested.get(id(optimizer.param_groups), 0) < RESTS_AFTER
        )

    def _without_step(self) -> Iterator[Optimizer]:
        return (o for o in self._optimizers if id(o.param_groups) not in self._since)

    def _new(self, optimizer: Optimizer) -> bool:
        """Whether there are gradients that the optimizer has not used.

        Which ones it has used is noted only if it was seen not to begin a step in each of the
        session's.
        """
        used = self._used.get(id(optimizer.param_groups), {})
        return any(_is_new(p, used) for p in _with_gradients(optimizer))

    def _begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """An optimizer changes its parameters now, or once the closure that it is given returns.

        Lightning computes the gradients in the closure, and there a survivor waits for a lost rank.
        """
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._count(optimizer)
            return None

        def counted() -> Any:
            value = closure()
            self._count(optimizer)
            return value

        if "closure" in kwargs:
            return args, {**kwargs, "closure": counted}
        return (args[0], counted, *args[2:]), kwargs

    def _count(self, optimizer: Optimizer) -> None:
        self.begun += 1
        self._since.add(id(optimizer.param_groups))


def _with_gradients(optimizer: Optimizer) -> Iterator[Any]:
    return (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)


def _is_new(parameter: Any, used: Mapping[int, _Gradient]) -> bool:
    """Whether its gradient is another one than it was, or has grown."""
    former, version = used.get(id(parameter), (None, 0))
    same = former is not None and former() is parameter.grad
    return not same or parameter.grad._version != version
