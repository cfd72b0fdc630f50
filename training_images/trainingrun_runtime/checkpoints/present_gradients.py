"""Which parameters of an optimizer have a gradient: one that is zero moves a parameter, too.

Momentum and decay of weights continue for a parameter whose gradient is zero, and not for one that
has none. `zero_grad(set_to_none=False)` leaves the former, also of a layer that some steps do not
use. So a checkpoint says which gradients there are, and they are zero after a restore: what they
were is used up by then.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from .stateful_objects import parameters_of

KEY = "gradients"
"""In the saved state of an optimizer, beside what its `state_dict()` returned."""


def present(optimizer: Optimizer) -> list[list[int]]:
    """Each parameter's number among the optimizer's, and the gradient's sparse dimensions."""
    return [
        [number, parameter.grad.sparse_dim() if parameter.grad.is_sparse else 0]
        for number, parameter in enumerate(parameters_of(optimizer))
        if parameter.grad is not None
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
