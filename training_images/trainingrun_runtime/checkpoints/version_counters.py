"""Version counters of tensors: each change in place makes one of them another number."""

from collections.abc import Sequence

import torch

from . import data_changes
from .sharded_state import held_tensor, is_sharded


def counted(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those of which the counters show every change of these tensors.

    A part may be changed as what it is, and as a part of the whole: each counts by itself.
    """
    return [*tensors, *(held_tensor(tensor) for tensor in tensors if is_sharded(tensor))]


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Their counters, after the number of changes by `Parameter.data`."""
    return [data_changes.changes(), *(tensor._version for tensor in tensors)]
