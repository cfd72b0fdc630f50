"""Which samples each rank takes in which step of an epoch; pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import random_numbers

Indices = NDArray[np.int64]


def order(samples: int, seed: int, epoch: int, shuffle: bool) -> Indices:
    """The order in which an epoch takes the samples: a function of its arguments."""
    if not shuffle:
        return np.arange(samples, dtype=np.int64)
    number = random_numbers.derive(seed, "order", epoch)
    # RandomState, because NumPy never changes what it draws; default_rng's may change by version.
    random = np.random.RandomState([number >> 32, number & 0xFFFFFFFF])
    return random.permutation(samples).astype(np.int64, copy=False)


@dataclass(frozen=True)
class Dealing:
    """How the samples that are left of an epoch are dealt to the ranks, step by step.

    What a step takes depends on the number of samples that are left and on nothing before, so that
    a resumed training, with any number of ranks, goes on where the former one has stopped. Each
    rank gets a sample in each step: without one it could not take part in the step's collectives.
    """

    batch_size: int
    """Samples per rank and step."""
    ranks: int
    """How many ranks take samples."""
    drop_last: bool
    """Whether the samples at the end that do not fill every rank's batch are left out."""

    def taken(self, left: int) -> int:
        """Samples that the next step takes, all ranks together; 0: the epoch is over.

        Raises:
            ValueError: there are fewer samples than ranks.
        """
        full = self.batch_size * self.ranks
        if left >= full + self.ranks or left == full:
            return full
        if self.drop_last:
            return full if left > full else 0
        if 0 < left < self.ranks:
            raise ValueError(
                f"{left} samples are left in this epoch for {self.ranks} ranks, and each needs one "
                f"in each step; train with {left} workers at most until the epoch is over, or set "
                "drop_last=True, which leaves these samples out"
            )
        if left > full and self.batch_size > 1:
            return left - self.ranks  # so that each rank has a sample in the step after it
        return left

    def steps(self, left: int) -> int:
        """Steps until that many samples are taken.

        Raises:
            ValueError: there are fewer samples than ranks.
        """
        full = self.batch_size * self.ranks
        steps = max(0, left // full - 2)  # the last ones may be smaller
        left -= steps * full
        while taken := self.taken(left):
            steps, left = steps + 1, left - taken
        return steps

    def share(self, taken: int, rank: int) -> slice:
        """Which of the samples that a step takes are this rank's; sizes differ by 1 at most."""
        each, more = divmod(taken, self.ranks)
        begin = rank * each + min(rank, more)
        return slice(begin, begin + each + (rank < more))
