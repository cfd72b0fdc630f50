"""Which samples each rank takes in which step, and where a training is in its data.

For loaders that a resumed training continues exactly, with any number of ranks.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from .. import random_numbers
from ..checkpoints.stateful_objects import SmallState
from ..known_errors.failure_causes import TooManyWorkers

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
            TooManyWorkers: there are fewer samples than ranks.
        """
        full = self.batch_size * self.ranks
        if left >= full + self.ranks or left == full:
            return full
        if self.drop_last:
            return full if left > full else 0
        if 0 < left < self.ranks:
            raise TooManyWorkers(
                f"{left} samples are left in this epoch for {self.ranks} ranks, and each needs one "
                f"in each step; train with {left} workers at most until the epoch is over, or set "
                "drop_last=True, which leaves these samples out",
                left,
            )
        if left > full and self.batch_size > 1:
            return left - self.ranks  # so that each rank has a sample in the step after it
        return left

    def steps(self, left: int) -> int:
        """Steps until that many samples are taken.

        Raises:
            TooManyWorkers: there are fewer samples than ranks.
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


@dataclass(frozen=True)
class Position:
    """How far a training is in its data; the same on all ranks."""

    seed: int
    """Decides the order of each epoch and the random numbers of each batch."""
    shuffle: bool
    """Whether each epoch has an order of its own."""
    samples: int
    """Samples of the data set."""
    epoch: int = 0
    """The epoch under way."""
    consumed: int = 0
    """Samples of it that were handed out, to all ranks together."""
    batches: int = 0
    """Batches of it that were handed out to each rank."""

    @property
    def left(self) -> int:
        """Samples of the epoch that were not handed out."""
        return self.samples - self.consumed

    def after(self, dealing: Dealing) -> "Position":
        """The position after the next step."""
        return replace(
            self, consumed=self.consumed + dealing.taken(self.left), batches=self.batches + 1
        )


@dataclass(frozen=True)
class Batch:
    """What one rank takes in one step."""

    number: int
    """Random numbers that the batch is loaded with follow from it."""
    indices: Indices
    """Its samples."""


def steps_from(
    position: Position, dealing: Dealing, ranks: Iterable[int]
) -> Iterator[tuple[Batch, ...]]:
    """For each step from a position to the end of its epoch: the batches of these ranks."""
    ranks = tuple(ranks)
    indices = order(position.samples, position.seed, position.epoch, position.shuffle)
    while taken := dealing.taken(position.left):
        here = indices[position.consumed : position.consumed + taken]
        place = ("batch", position.epoch, position.consumed)
        yield tuple(
            Batch(
                random_numbers.derive(position.seed, *place, rank),
                here[dealing.share(taken, rank)],
            )
            for rank in ranks
        )
        position = position.after(dealing)


class ResumableLoader(SmallState):
    """Base of loaders whose position is a few numbers, the same with any number of ranks.

    Its arguments are those of `ResumableDataLoader`.

    Raises:
        ValueError: there are fewer samples than ranks.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        rank: int | None,
        world_size: int | None,
    ) -> None:
        if not hasattr(batch_size, "__index__") or batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it takes a whole number of 1 or more")
        if not hasattr(dataset, "__len__"):
            raise TypeError(
                f"{type(dataset).__name__} has no __len__, so the end of an epoch is not known; "
                "give it one"
            )
        distributed = dist.is_available() and dist.is_initialized()
        own_rank, ranks = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
        self._rank = own_rank if rank is None else rank
        self._dealing = Dealing(
            int(batch_size), ranks if world_size is None else world_size, drop_last
        )
        self._position = Position(int(seed), bool(shuffle), len(dataset))
        self.drawn = 0
        """Batches that this object has handed out."""
        self._iteration, self._epoch_is_set = 0, False
        least = self._dealing.ranks * (batch_size if drop_last else 1)
        if len(dataset) < least:
            raise ValueError(
                f"the data set has {len(dataset)} samples, and each step of "
                f"{self._dealing.ranks} ranks takes at least {least}; lower batch_size, use fewer "
                "workers, or more samples"
            )

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return self._position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch; continue it, where it is under way or over already.

        From then on every epoch has to be set. Otherwise they follow one another.
        """
        self._epoch_is_set = True
        if epoch != self._position.epoch:
            self._begin(epoch)

    def __len__(self) -> int:
        """Batches of the epoch under way, with those that were handed out before a checkpoint."""
        return self._position.batches + self._dealing.steps(self._position.left)

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of the epoch; of the next one, where none is left.

        An epoch that was set and is over has none.
        """
        if not self._epoch_is_set and not self._dealing.taken(self._position.left):
            self._begin(self._position.epoch + 1)
        self._iteration += 1
        iteration = self._iteration
        for batch in self._batches_from(self._position):
            if self._iteration != iteration:
                raise RuntimeError(
                    "a loop over the loader goes on after its position was changed by another "
                    "loop, set_epoch() or load_state_dict(); begin a new loop"
                )
            self._position = self._position.after(self._dealing)
            self.drawn += 1
            yield batch

    def continues_with(self, ranks: int) -> bool:
        """Whether what is left of the epoch can be dealt to any number of ranks up to this one."""
        left = self._position.left
        return self._dealing.drop_last or not 0 < left < ranks

    def state_dict(self) -> dict[str, Any]:
        """How far the training is in its data."""
        return asdict(self._position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue there.

        Raises:
            ValueError: the data set has another number of samples.
        """
        position = Position(**state)
        if position.samples != self._position.samples:
            raise ValueError(
                f"the loader was saved with a data set of {position.samples} samples, and this one "
                f"has {self._position.samples}; use the same data, or leave the loader out of the "
                "session"
            )
        self._dealing.steps(position.left)  # raises where too few samples are left
        self._move(position)

    def _batches_from(self, position: Position) -> Iterator[Any]:
        """This rank's batches from a position to the end of its epoch."""
        raise NotImplementedError

    def _begin(self, epoch: int) -> None:
        self._move(replace(self._position, epoch=epoch, consumed=0, batches=0))

    def _move(self, position: Position) -> None:
        self._position = position
        self._iteration += 1


def loaded(dataset: Any, number: int, indices: list[int]) -> Any:
    """The samples, in whatever process this is.

    Args:
        dataset: one with `__getitem__`, or with `__getitems__`, which gets all indices at once.
        number: the random numbers that are drawn meanwhile follow from it.
        indices: of the samples.
    """
    many = getattr(dataset, "__getitems__", None)
    with random_numbers.borrowed(number):
        return many(indices) if many else [dataset[i] for i in indices]
