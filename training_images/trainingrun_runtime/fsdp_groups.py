"""What FSDP2 does not tell of a model, by names of its own that may change."""

from collections.abc import Iterator
from typing import Any

import torch


def fsdp_groups(model: torch.nn.Module) -> Iterator[Any]:
    """What FSDP2 keeps for each of its groups of parameters.

    Read for torch 2.13: `torch/distributed/fsdp/_fully_shard/_fsdp_state.py`.
    """
    for module in model.modules():
        if not hasattr(module, "_get_fsdp_state"):
            continue
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:  # an older PyTorch has one for each module, at most
            groups = [state._fsdp_param_group] if state._fsdp_param_group else []
        yield from groups
