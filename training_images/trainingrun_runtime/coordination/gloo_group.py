"""A gloo group by which many ranks send each other a few numbers; for few, see `rank_links`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class GlooGroup:
    """A group of all ranks, separate from the training's; all ranks make it.

    Args:
        timeout_s: seconds after which a rank that waits for another one fails.
    """

    def __init__(self, timeout_s: float) -> None:
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._world_size = dist.get_world_size()

    def start(self, numbers: Sequence[int]) -> "GlooRound":
        """Send these numbers to every other rank; each passes equally many, equally often.

        Args:
            numbers: signed integers of 64 bits.
        """
        # One more: gloo gathers nothing where there is nothing, and the ranks do not wait.
        mine = torch.tensor([*numbers, 0], dtype=torch.int64, device="cpu")
        every = [torch.empty_like(mine) for _ in range(self._world_size)]
        return GlooRound(dist.all_gather(every, mine, self._group, async_op=True), every)


@dataclass(frozen=True)
class GlooRound:
    """The numbers that each rank sends once."""

    _work: Any
    _every: Sequence[torch.Tensor]

    def wait(self) -> list[Sequence[int]]:
        """Every rank's numbers, by rank.

        Raises:
            RuntimeError: a rank is lost, or silent for too long.
        """
        self._work.wait()
        return self._numbers()

    def known(self) -> list[Sequence[int]] | None:
        """The same without a wait, from any thread; None: not every rank's have arrived."""
        return self._numbers() if self._work.is_completed() and self._work.is_success() else None

    def _numbers(self) -> list[Sequence[int]]:
        return [each.tolist()[:-1] for each in self._every]
