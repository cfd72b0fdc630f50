"""What the times of steps say about a training; pure."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def gaps(times: Sequence[float]) -> list[float]:
    """Seconds of each step but the first, from when the steps were done."""
    return [later - earlier for earlier, later in itertools.pairwise(times)]


@dataclass(frozen=True)
class Windows:
    """Steps in which a checkpoint is made and uploaded, and steps without one, in turn."""

    beside: int = 60
    """Steps from one that makes a checkpoint; its upload takes less."""
    alone: int = 40
    """Steps after those, in which nothing is left of it."""

    def saves(self, warm_up: int, count: int) -> list[int]:
        """Steps after which a checkpoint is made: one that does not count, and `count` others."""
        return [warm_up // 2, *(warm_up + n * (self.beside + self.alone) for n in range(count))]

    def steps(self, saves: Sequence[int]) -> int:
        """So many are done in all."""
        return saves[-1] + self.beside + self.alone + 1


@dataclass(frozen=True)
class Stall:
    """What checkpoints cost; medians over the checkpoints."""

    shares: list[float]
    """Of the time, by checkpoint."""
    each_s: float
    """Seconds that a checkpoint costs."""
    at_once_s: float
    """Seconds of those in the step that makes it."""


def stall(times: Sequence[float], saves: Sequence[int], windows: Windows) -> Stall:
    """Compare the steps beside a checkpoint with those alone.

    Args:
        times: when each step was done.
        saves: steps after which a checkpoint was made; the first one does not count.
        windows: how many steps are on either side.
    """
    every = gaps(times)
    shares, costs, at_once = [], [], []
    for save in saves[1:]:
        end = save + windows.beside
        with_it, without = every[save:end], every[end : end + windows.alone]
        usual = statistics.fmean(without)
        costs.append(sum(with_it) - usual * windows.beside)
        shares.append(costs[-1] / (sum(with_it) + sum(without)))
        at_once.append(every[save] - usual)
    return Stall(shares, statistics.median(costs), statistics.median(at_once))
