"""Whether something has changed large tensors, of which a fingerprint reads some elements alone."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from . import data_changes, encoding
from .fingerprint import WHOLE
from .sharded_state import Encoded, held_tensor


class Versions(NamedTuple):
    """Of the large tensors of states; a change that they show is one, and not the reverse."""

    by_data: int
    """See `data_changes.changes`."""
    by_place: Mapping[int, int]
    """Version counters by address: an object may return its state in other tensors each time."""

    def changed(self, later: "Versions") -> bool:
        """Whether something was changed in between."""
        return self.by_data != later.by_data or any(
            self.by_place.get(place, version) != version
            for place, version in later.by_place.items()
        )


def versions(states: Mapping[str, Encoded]) -> Versions:
    """The versions of now, of these objects' states."""
    found = {}
    for state in states.values():
        for tensor in (*encoding.tensors(state.tree), *state.shards.values()):
            held = held_tensor(tensor)
            if held.numel() > WHOLE and held.layout is torch.strided:
                # A part may be changed as what it is, and as a part of the whole.
                found[held.data_ptr()] = _version(held) + _version(tensor)
    return Versions(data_changes.changes(), found)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
