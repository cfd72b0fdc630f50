"""Buffers that no checkpoint holds, as they were registered with `persistent=False`.

Most are tables that a model computes anew, such as those of rotary embeddings. A count or an
average among them begins anew after a loss, and the weights become others without an error.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

LARGEST_COPY = 8 * 2**20
"""Bytes of buffers that are copied until the first step is done; the smallest ones first, since
what counts or averages is small, and tables are large."""


class UnsavedBuffers:
    """Their values when the session is made, compared once.

    Args:
        objects: of the session, by name.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._models = {
            name: thing for name, thing in objects.items() if isinstance(thing, torch.nn.Module)
        }
        found = [one for name in self._models for one in self._buffers(name)]
        left = LARGEST_COPY
        self._then: dict[str, torch.Tensor] = {}
        for place, buffer in sorted(found, key=lambda one: one[1].nbytes):
            left -= buffer.nbytes
            if left < 0:
                break
            self._then[place] = buffer.detach().clone()

    def changed(self) -> list[str]:
        """Names of those that are others now; they are not compared again.

        One of another shape is a table that was made longer.
        """
        then, self._then = self._then, {}
        return [
            place
            for name in self._models
            for place, buffer in self._buffers(name)
            if place in then and not _same(buffer.detach(), then[place])
        ]

    def _buffers(self, name: str) -> Iterator[tuple[str, torch.Tensor]]:
        for path, module in self._models[name].named_modules():
            for key in sorted(module._non_persistent_buffers_set):
                buffer = module._buffers.get(key)
                if type(buffer) is torch.Tensor and _is_plain(buffer):
                    yield ".".join(filter(None, (name, path, key))), buffer


def _is_plain(buffer: torch.Tensor) -> bool:
    """Whether its bytes are its values; of others, such as DTensors, nothing is said."""
    of_another_kind = buffer.is_meta or buffer.is_quantized or buffer.is_conj()
    return buffer.layout is torch.strided and not of_another_kind


def _same(now: torch.Tensor, then: torch.Tensor) -> bool:
    if now.shape != then.shape or now.dtype is not then.dtype or now.device != then.device:
        return True
    # As bytes: NaN is NaN then.
    one, other = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (now, then))
    same: bool = torch.equal(one, other)
    return same
