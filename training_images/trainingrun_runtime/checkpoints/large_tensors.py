"""Whether something has changed large tensors, of which a fingerprint reads some elements alone."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from . import data_changes, encoding
from .sharded_state import Encoded, held_tensor, is_sharded
from .stateful_objects import own_tensors


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


def versions(states: Mapping[str, Encoded], objects: Iterable[Any]) -> Versions:
    """The versions of now, of these objects' states.

    Args:
        states: as `snapshot.encoded` returns them.
        objects: whose states they are.
    """
    found: dict[int, int] = {}
    for state in states.values():
        for tensor in (*encoding.tensors(state.tree), *state.shards.values()):
            if _is_large(tensor):
                # A part may be changed as what it is, and as a part of the whole.
                found[_place(tensor)] = _version(held_tensor(tensor)) + _version(tensor)
    # A state has detached DTensors, and what these hold counts by itself: a change through
    # `to_local()` of the objects' own shows in those alone.
    for thing in objects:
        for tensor in own_tensors(thing):
            if is_sharded(tensor) and _is_large(tensor):
                place = _place(tensor)
                found[place] = found.get(place, 0) + _version(held_tensor(tensor))
    return Versions(data_changes.changes(), found)


def _is_large(tensor: torch.Tensor) -> bool:
    held = held_tensor(tensor)
    return held.numel() > 65_536 and held.layout is torch.strided


def _place(tensor: torch.Tensor) -> int:
    return int(held_tensor(tensor).data_ptr())


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
