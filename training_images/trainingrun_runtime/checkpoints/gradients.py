"""What a checkpoint says of gradients, which it does not hold, and when it waits for their use.

Momentum and decay of weights continue for a parameter whose gradient is zero, and not for one that
has none. `zero_grad(set_to_none=False)` leaves the former, also of a layer that some steps do not
use. So a checkpoint says which gradients there are, and they are zero after a restore: what they
were is used up by then. While gradients wait for a later step of their optimizer, none is made.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from ..fsdp_groups import fsdp_groups
from .stateful_objects import parameters_of

RESTS_AFTER = 500
"""An optimizer that has begun no step in so many of the session's rests: its gradients may be left
over, as those of a discriminator's loss in the generator, and a checkpoint does not wait for it."""

_Groups = Sequence[Mapping[str, Any]]
Gradient = tuple["weakref.ref[torch.Tensor]", int]
"""One as it was: with its version, by which PyTorch counts what is written to it."""


def present(optimizer: Optimizer) -> list[list[int]]:
    """Each parameter's number among the optimizer's, and the gradient's sparse dimensions."""
    return [
        [number, gradient.sparse_dim() if gradient.is_sparse else 0]
        for number, parameter in enumerate(parameters_of(optimizer))
        if (gradient := parameter.grad) is not None
    ]


def put_back(optimizer: Optimizer, gradients: Iterable[Iterable[int]]) -> None:
    """Have the parameters that had a gradient have one again, which is zero."""
    parameters = parameters_of(optimizer)
    for number, sparse_dims in gradients:
        parameters[number].grad = _zero(parameters[number], sparse_dims)


def _zero(parameter: torch.Tensor, sparse_dims: int) -> torch.Tensor:
    if not sparse_dims:
        return torch.zeros_like(parameter)
    like: Any = {"dtype": parameter.dtype, "device": parameter.device}
    places = torch.empty((sparse_dims, 0), dtype=torch.int64, device=parameter.device)
    values = torch.empty((0, *parameter.shape[sparse_dims:]), **like)
    return torch.sparse_coo_tensor(places, values, parameter.shape, check_invariants=True)


class AccumulatedGradients:
    """Watches optimizers, and the gradients of their parameters.

    Args:
        optimizers: those of the session.
    """

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self.begun = 0
        """Steps that the optimizers of this process have begun; an own one of the user counts."""
        self.before_use: Callable[[Optimizer], None] = lambda _: None
        """Called before an optimizer uses its gradients."""
        self._optimizers = list(optimizers)
        # Groups of parameters of those that have begun one since the session's step began: a
        # wrapper, as Accelerate's, has the very list of its optimizer.
        self._since: list[_Groups] = []
        self._rested: dict[int, int] = {}  # steps without one, by the id of that list
        # By the parameter's id; what is there already, as after a restore, waits for nothing.
        self._used = noted(p for o in self._optimizers for p in _with_gradients(o.param_groups))
        self._some_rest = False
        self._fsdp: list[Any] = []  # what FSDP2 keeps for each group of parameters
        self._held_back_for = 0  # steps in a row at whose end FSDP2 held some of them back
        register_optimizer_step_pre_hook(self._begins)

    def watch_models(self, models: Iterable[torch.nn.Module]) -> None:
        """The models of the session: FSDP2 holds back gradients that it does not reduce yet."""
        self._fsdp = [group for model in models for group in fsdp_groups(model)]

    def step_begins(self) -> None:
        """The session's next step begins."""
        self._since = []

    def step_done(self) -> None:
        """The session's step is done."""
        without = self._without_step()
        self._rested = {id(o.param_groups): self._rests(o) + 1 for o in without}
        self._held_back_for = self._held_back_for + 1 if self._some_held_back() else 0
        if not self._some_rest and not self._new(without):
            return
        # Gradients may be left until the next ones are computed. Which ones were used is noted only
        # once an optimizer was seen that does not begin a step in each of the session's.
        self._some_rest = True
        for groups in self._since:
            self._used |= noted(_with_gradients(groups))

    def wait(self) -> bool:
        """Whether gradients wait for a later step now."""
        return self._new(self._without_step()) or self._some_held_back()

    def hold_checkpoints(self) -> bool:
        """Whether a checkpoint should be made later: they wait, and for no optimizer that rests."""
        active = [o for o in self._without_step() if self._rests(o) < RESTS_AFTER]
        held_back = self._held_back_for < RESTS_AFTER and self._some_held_back()
        return held_back or self._new(active)

    def used_by(self, optimizer: Optimizer) -> bool:
        """Whether it has begun a step since the session's last one began."""
        return any(groups is optimizer.param_groups for groups in self._since)

    def _without_step(self) -> list[Optimizer]:
        begun = {id(groups) for groups in self._since}
        return [o for o in self._optimizers if id(o.param_groups) not in begun]

    def _rests(self, optimizer: Optimizer) -> int:
        return self._rested.get(id(optimizer.param_groups), 0)

    def _new(self, optimizers: Sequence[Optimizer]) -> bool:
        """Whether there are gradients that no optimizer has used."""
        if not optimizers:
            return False
        # Another optimizer may have the same parameters.
        used = {id(p) for groups in self._since for p in _with_gradients(groups)}
        return any(
            id(p) not in used and is_new(p, self._used)
            for optimizer in optimizers
            for p in _with_gradients(optimizer.param_groups)
        )

    def _some_held_back(self) -> bool:
        """Whether FSDP2 will add gradients of now to later ones, for one of the optimizers.

        A step of the optimizer in between does not use them, nor does its `zero_grad()` clear them.
        """
        held_back = {id(p) for group in self._fsdp for p in _held_back(group)}
        return bool(held_back) and any(
            id(p) in held_back for o in self._optimizers for p in parameters_of(o)
        )

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
        self.before_use(optimizer)
        if not self.used_by(optimizer):
            self._since.append(optimizer.param_groups)


def _with_gradients(groups: _Groups) -> Iterator[Any]:
    return (p for group in groups for p in group["params"] if p.grad is not None)


def _held_back(group: Any) -> Iterator[Any]:
    """Parameters with gradients that FSDP2 has not put into `grad`.

    It waits for a backward pass with `set_requires_gradient_sync(True)`, or of HSDP with
    `set_requires_all_reduce(True)`. Read for torch 2.13:
    `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`.
    """
    partial = group._partial_reduce_output is not None
    for it in group.fsdp_params:
        whole = getattr(it, "_unsharded_param", None)  # made by the first forward pass
        added_up = it.unsharded_accumulated_grad is not None
        if partial or added_up or (whole is not None and whole.grad is not None):
            yield it.sharded_param


def noted(parameters: Iterable[Any]) -> dict[int, Gradient]:
    """The gradients of these parameters as they are now, by the parameters' ids."""
    return {id(p): (weakref.ref(p.grad), p.grad._version) for p in parameters}


def is_new(parameter: Any, used: Mapping[int, Gradient]) -> bool:
    """Whether its gradient is another one than it was, or has grown."""
    former, version = used.get(id(parameter), (None, 0))
    same = former is not None and former() is parameter.grad
    return not same or parameter.grad._version != version
