"""A few elements of tensors, which show a change that no version counter shows.

A change through NumPy's view of a tensor, through an older `.data`, or by a CUDA graph.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch

from .sharded_state import held_tensor

PROBES, PROBE = 16, 64
"""Tensors of which some elements are compared, and how many."""

T = TypeVar("T")


def chosen(tensors: Sequence[T]) -> Sequence[T]:
    """Some of them, evenly spread."""
    return tensors[:: max(1, -(-len(tensors) // PROBES))]


def some(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a few elements, evenly spread; none where their memory is not in a row."""
    flat = held_tensor(tensor).detach()
    if not flat.is_contiguous():
        return flat.new_empty(0)
    flat = flat.view(-1)
    return flat[:: max(1, flat.numel() // PROBE)]


def same(view: torch.Tensor, copy: torch.Tensor) -> bool:
    """Whether a view that `some` returned has the very bits of its former copy; NaN is NaN then."""
    return bool(torch.equal(view.contiguous().view(torch.uint8), copy.view(torch.uint8)))
