"""One small number on which all ranks agree at each step, without making any of them wait."""

from typing import Any

import torch
import torch.distributed as dist


class Agreement:
    """The largest of the ranks' numbers, one step late.

    A notice reaches one pod, yet all ranks must make the checkpoint after the same step. Each step
    starts an asynchronous all-reduce of a few bytes and reads the former step's: by then it has
    long arrived, so the step does not get slower. It has a gloo group of its own: it never mixes
    with the training's collectives, and needs no accelerator.
    """

    def __init__(self) -> None:
        alone = not dist.is_initialized() or dist.get_world_size() == 1
        self._group: Any = None if alone else dist.new_group(backend="gloo")
        self._pending: tuple[Any, torch.Tensor] | None = None
        self._last = [0, 0]

    def exchange(self, order: int, busy: bool) -> tuple[int, bool]:
        """Give this rank's numbers; get all ranks' largest ones of the former call.

        Args:
            order: what this rank wants done, the larger the more urgent.
            busy: whether this rank still uploads a checkpoint.
        """
        former = self.settle()
        numbers = torch.tensor([order, int(busy)], dtype=torch.int32)
        if self._group is None:
            self._last = numbers.tolist()
        else:
            work = dist.all_reduce(numbers, dist.ReduceOp.MAX, self._group, async_op=True)
            self._pending = (work, numbers)
        return former

    def settle(self) -> tuple[int, bool]:
        """Wait for the call under way; its numbers."""
        if self._pending is not None:
            work, numbers = self._pending
            work.wait()
            self._last, self._pending = numbers.tolist(), None
        return self._last[0], bool(self._last[1])

    def forget(self) -> None:
        """What was agreed is done; do not do it again at the next step."""
        self.settle()
        self._last = [0, 0]

    def wait_for_all(self) -> None:
        """Return once every rank is here."""
        if self._group is not None:
            dist.barrier(self._group)
