"""Copies of a checkpoint's tensors that are made while the next step computes its gradients.

Between two steps of the optimizers, most training code changes neither parameters nor what the
optimizers keep for them. So training goes on while these are copied, until an optimizer begins its
next step. Where something has changed one of them before, the copies are void: their version
counters show it, and so do a few elements.

From a GPU they are made in a stream of their own. The tests run without a GPU, so that has not been
run.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from . import probes
from .background import begin_behind_training
from .sharded_state import held_tensor
from .staging import Pair, is_pinned_for
from .stateful_objects import own_tensors
from .version_counters import counted, versions


def changed_by_optimizers(objects: Iterable[Any]) -> dict[int, list[torch.Tensor]]:
    """What only optimizers change, by `address`: parameters, and what optimizers keep for them."""
    found: dict[int, list[torch.Tensor]] = {}
    others = {0}
    for thing in objects:
        if isinstance(thing, torch.nn.Module):
            others |= {address(buffer) for buffer in thing.buffers()}
        for tensor in own_tensors(thing):
            found.setdefault(address(tensor), []).append(tensor)
    return {place: tensors for place, tensors in found.items() if place not in others}


def address(tensor: torch.Tensor) -> int:
    """Where the memory is in which this rank has the tensor, or its part of it; 0: not plain."""
    held = held_tensor(tensor)
    plain = type(held) in (torch.Tensor, torch.nn.Parameter) and held.layout is torch.strided
    if not plain or held.is_inference() or held.is_quantized:  # of the former, nothing is counted
        return 0
    return int(held.untyped_storage().data_ptr())


class LateCopies:
    """Copies that a thread makes beside training.

    Args:
        pairs: what is to be copied, and where.
        changeable: what `changed_by_optimizers` returned; the sources are among it.
    """

    def __init__(
        self, pairs: Sequence[Pair], changeable: Mapping[int, Sequence[torch.Tensor]]
    ) -> None:
        self.pairs = pairs
        """What is to be copied; empty once it is settled."""
        places = {address(source) for _, source in pairs}
        self._watched = counted([tensor for place in places for tensor in changeable[place]])
        self._versions = versions(self._watched)
        self._probes = probes.taken(probes.chosen([source for _, source in pairs]))
        self._made, self._settled = threading.Event(), threading.Event()
        self._intact = False
        self._error: BaseException | None = None
        self._events = []
        for gpu in {source.device for _, source in pairs if source.is_cuda}:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(gpu))
            self._events.append((gpu, event))
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin to make them; nothing has changed the sources since this object was made."""
        self._thread = begin_behind_training(self._make)

    def settle(self) -> bool:
        """Whether they were begun, and are copies of what was there when this object was made.

        Called by the thread that trains: an optimizer, or other code, may change the sources next.

        Raises:
            Exception: why they could not be made.
        """
        try:
            if self._thread is not None:
                # First: what changes a tensor counts as a change only once it is done.
                self._thread.join()
                same = self._error is None and versions(self._watched) == self._versions
                self._intact = same and probes.same(self._probes)
        finally:
            self.pairs, self._watched, self._probes = (), [], []  # their memory may be wanted
            self._made.set()  # where they were not begun
            self._settled.set()
        if self._error is not None:
            raise self._error
        return self._intact

    def wait(self) -> None:
        """Return once they are made, or will not be."""
        self._made.wait()

    def intact(self) -> bool:
        """What `settle` returned; waits until the thread that trains has called it."""
        self._settled.wait()
        return self._intact

    def _make(self) -> None:
        try:
            with ExitStack() as stack, torch.no_grad():
                streams = [torch.cuda.Stream(gpu) for gpu, _ in self._events]
                for stream, (_, event) in zip(streams, self._events, strict=True):
                    stream.wait_event(event)
                    stack.enter_context(torch.cuda.stream(stream))
                for target, source in self.pairs:
                    target.copy_(source, non_blocking=is_pinned_for(source))
                for stream in streams:
                    stream.synchronize()
        except BaseException as error:
            self._error = error
        self._made.set()
