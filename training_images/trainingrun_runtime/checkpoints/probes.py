"""A few elements of tensors, which show a change that no version counter shows.

A change through NumPy's view of a tensor, through an older `.data`, or by a CUDA graph.
"""

from collections.abc import Sequence

import torch

from .sharded_state import held_tensor

PROBES, PROBE = 16, 64
"""Tensors of which some elements are compared, and how many."""

Probe = tuple[torch.Tensor, torch.Tensor]
"""A view of some elements, and a copy of them."""


def chosen(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Some of them, evenly spread."""
    return tensors[:: max(1, -(-len(tensors) // PROBES))]


def taken(tensors: Sequence[torch.Tensor]) -> list[Probe]:
    """A probe of each."""
    return [(view, view.clone()) for view in map(_some, tensors)]


def same(probes: Sequence[Probe]) -> bool:
    """Whether the elements have the very bits that they had; NaN is NaN then."""
    return all(
        torch.equal(view.contiguous().view(torch.uint8), copy.view(torch.uint8))
        for view, copy in probes
    )


def _some(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a few elements, evenly spread; none where their memory is not in a row."""
    flat = held_tensor(tensor).detach()
    if not flat.is_contiguous():
        return flat.new_empty(0)
    flat = flat.view(-1)
    return flat[:: max(1, flat.numel() // PROBE)]
