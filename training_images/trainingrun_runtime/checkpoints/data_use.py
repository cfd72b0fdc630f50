"""How often the training code has used `Parameter.data`: a change by it counts as no version.

Adversarial training, binary weights and averages that are swapped in change parameters that way in
the middle of a step, and change them back. No few elements show it where only some rows are
changed, so each use counts, also one that only reads.
"""

from typing import Any

import torch

_plain: Any = torch.Tensor.data
_uses = 0


def uses() -> int:
    """Uses in this process since the first call."""
    if not isinstance(vars(torch.nn.Parameter).get("data"), property):
        torch.nn.Parameter.data = property(_get, _set)
    return _uses


def _get(parameter: torch.nn.Parameter) -> torch.Tensor:
    _count()
    found: torch.Tensor = _plain.__get__(parameter)
    return found


def _set(parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
    # Lightning calls model.cpu() once a collective has failed: it sets what is there already.
    if not _is_at(parameter, value):
        _count()
    _plain.__set__(parameter, value)


def _is_at(parameter: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether both are the same elements in memory."""
    try:
        one, other = (
            (t.data_ptr(), t.dtype, t.device, t.shape, t.stride()) for t in (parameter, value)
        )
    except RuntimeError:  # a tensor without memory, or without a layout
        return False
    return one == other


def _count() -> None:
    global _uses
    _uses += 1
