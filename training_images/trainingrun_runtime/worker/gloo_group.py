"""A gloo group by which the ranks send each other a few numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class GlooGroup:
    """A group of all ranks, separate from the training's; all ranks make it.

    A rank that trains alone needs no process group.

    Args:
        timeout_s: seconds after which a rank that waits for another one fails.
    """

    def __init__(self, timeout_s: float) -> None:
        self._world_size = dist.get_world_size() if dist.is_initialized() else 1
        self._group: Any = None
        if self._world_size > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def start(self, numbers: Sequence[int]) -> "Round":
        """Send these numbers to every other rank.

        Each passes equally many, equally often: gloo ends a process that gets other messages.

        Args:
            numbers: signed integers of 64 bits.
        """
        # One more: gloo gathers nothing where there is nothing, and the ranks do not wait.
        mine = torch.tensor([*numbers, 0], dtype=torch.int64, device="cpu")
        if self._group is None:
            return Round(None, [mine])
        every = [torch.empty_like(mine) for _ in range(self._world_size)]
        return Round(dist.all_gather(every, mine, self._group, async_op=True), every)


@dataclass(frozen=True)
class Round:
    """The numbers that each rank sends once."""

    _work: Any
    _every: Sequence[torch.Tensor]

    def wait(self) -> list[Sequence[int]]:
        """Every rank's numbers, by rank.

        Raises:
            RuntimeError: a rank is lost, or silent for too long.
        """
        if self._work is not None:
            self._work.wait()
        return self._numbers()

    def known(self) -> list[Sequence[int]] | None:
        """The same without a wait, from any thread; None: not every rank's have arrived."""
        if self._work is not None:
            result = self._work.get_future()
            if not result.done():
                return None
            try:
                result.value()
            except RuntimeError:  # it has failed
                return None
        return self._numbers()

    def _numbers(self) -> list[Sequence[int]]:
        return [each.tolist()[:-1] for each in self._every]
