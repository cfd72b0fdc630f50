"""How often the training code has changed a parameter by `Parameter.data`.

Such a change counts as no version of the parameter. Adversarial training, binary weights and
averages that are swapped in change parameters that way in the middle of a step, and change them
back; no few elements show it where only some rows are changed. What `.data` returns is a tensor
with a version counter of its own, so it is kept as long as something else has it. What only reads,
as an LSTM that lays out its weights, counts as no change.
"""

import sys
import threading
from typing import Any

import torch

_plain: Any = torch.Tensor.data
_lock = threading.Lock()
_changes = 0
_handed_out: list[torch.Tensor] = []
_KNOWS_VIEWS = hasattr(torch.Tensor, "_use_count")


def changes() -> int:
    """A number that grows with each change in this process since the first call."""
    if not isinstance(vars(torch.nn.Parameter).get("data"), property):
        torch.nn.Parameter.data = property(_get, _set)
    with _lock:
        _forget_unused(0)
        own: int = sum(tensor._version for tensor in _handed_out)
        return _changes + own


def _get(parameter: torch.nn.Parameter) -> torch.Tensor:
    found: torch.Tensor = _plain.__get__(parameter)
    if type(found) is torch.Tensor and _KNOWS_VIEWS and not torch.compiler.is_compiling():
        with _lock:
            _forget_unused(len(_handed_out) - 1)  # it would keep the memory of replaced data
            _handed_out.append(found)
    else:
        _count()
    return found


def _set(parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
    # Lightning calls model.cpu() once a collective has failed: it sets what is there already.
    if not _is_at(parameter, value):
        _count()
    _plain.__set__(parameter, value)


def _forget_unused(first: int) -> None:
    """Of those from that one on, keep only the changes where nothing has it, or a view of it."""
    global _changes
    for index in range(len(_handed_out) - 1, max(first, 0) - 1, -1):
        views = _handed_out[index]._use_count() - 1
        if not views and _references(_handed_out, index) == _OWN:
            _changes += _handed_out.pop(index)._version


def _references(tensors: list[torch.Tensor], index: int) -> int:
    return sys.getrefcount(tensors[index])


_OWN = _references([torch.empty(0)], 0)


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
    global _changes
    with _lock:
        _changes += 1
