"""Which samples each rank takes in which step, and where a training is in its data.

For loaders that a resumed training continues exactly, with any number of ranks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from .. import random_numbers
from ..checkpoints.stateful_objects import SmallState
from ..known_errors.failure_causes import TooManyWorkers
from .kept_batch import kept, use_microbatches

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

    A step takes what `whole` ranks take in one batch each. Fewer ranks share it in as many
    microbatches as it needs, each of them as many. Where their number divides `whole`, these are
    the very batches of `whole` ranks. The batches of `whole` ranks are not dealt out as they are
    otherwise: six ranks would need as long for eight of them as four do.
    """

    batch_size: int
    """Most samples of a microbatch; with `whole` ranks, samples per rank and step."""
    ranks: int
    """How many ranks take samples."""
    drop_last: bool
    """Whether the samples at the end that do not fill the whole step are left out."""
    whole: int = 0
    """Ranks whose batches make up one step, no fewer than `ranks`; 0: `ranks`, and each of them
    takes a step as one batch."""
    ones: bool = field(init=False)
    """Whether a microbatch is one sample, as two may not fit into memory. Some then repeat a sample
    that counts in another one: each rank has as many of them, and none is empty."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ones", self.batch_size == 1 and self.whole > 0)
        object.__setattr__(self, "whole", max(self.whole, self.ranks))

    @property
    def full(self) -> int:
        """Samples that a step takes, all ranks together, but for the last ones of an epoch."""
        return self.batch_size * self.whole

    def taken(self, left: int) -> int:
        """Samples that the next step takes, all ranks together; 0: the epoch is over.

        Raises:
            TooManyWorkers: there are fewer samples than ranks.
        """
        full = self.full
        if left >= full + self.whole or left == full:
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
            return left - self.whole  # so that each rank has a sample in the step after it
        return left

    def steps(self, left: int) -> int:
        """Steps until that many samples are taken.

        Raises:
            TooManyWorkers: there are fewer samples than ranks.
        """
        full_steps, last = self._until(left)
        return full_steps + len(last)

    def batches(self, left: int) -> int:
        """Microbatches of each rank until that many samples are taken.

        Raises:
            TooManyWorkers: there are fewer samples than ranks.
        """
        full_steps, last = self._until(left)
        return full_steps * self.parts(self.full) + sum(map(self.parts, last))

    def parts(self, taken: int) -> int:
        """Microbatches of each rank in a step that takes so many samples."""
        if self.ones:
            times, rest = divmod(self.whole, self.ranks)
            return times * -(-taken // self.whole) if not rest else -(-taken // self.ranks)
        return min(-(-self.whole // self.ranks), taken // self.ranks)  # none of them is empty

    def share(self, taken: int, rank: int, part: int = 0) -> slice:
        """Which of the samples that a step takes are in a microbatch of this rank.

        The sizes of the step's microbatches differ by 1 at most.
        """
        place, places = self.place(taken, rank, part), self.ranks * self.parts(taken)
        if self.ones:
            first = place * taken // places
            return slice(first, first + 1)
        each, more = divmod(taken, places)
        begin = place * each + min(place, more)
        return slice(begin, begin + each + (place < more))

    def repeats(self, taken: int, rank: int, part: int) -> bool:
        """Whether the microbatch's only sample counts in a later one, and here nothing."""
        place, places = self.place(taken, rank, part), self.ranks * self.parts(taken)
        return self.ones and place * taken // places == (place + 1) * taken // places

    def place(self, taken: int, rank: int, part: int) -> int:
        """The number of a microbatch among all of the step; with `whole` ranks, the rank."""
        return rank * self.parts(taken) + part

    def weight(self, taken: int, rank: int, part: int) -> float:
        """What a microbatch's mean counts in the sum over a rank's, for the mean over all samples.

        The ranks' sums are averaged afterwards. 0: see `repeats`.
        """
        if self.repeats(taken, rank, part):
            return 0.0
        share = self.share(taken, rank, part)
        samples: int = share.stop - share.start
        return samples * self.ranks / taken

    def _until(self, left: int) -> tuple[int, list[int]]:
        """Steps that take as many samples as the first, and what each of the last ones takes."""
        full_steps = max(0, left // self.full - 2)
        left -= full_steps * self.full
        last = []
        while taken := self.taken(left):
            last.append(taken)
            left -= taken
        return full_steps, last


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
    """Steps of it that were handed out."""

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
    """What one rank takes at once: in one step, or with more microbatches in a part of it."""

    number: int
    """Random numbers that the batch is loaded with follow from it."""
    indices: Indices
    """Its samples."""
    repeats: bool = False
    """See `Dealing.repeats`."""


def batches_from(
    position: Position, dealing: Dealing, ranks: Iterable[int]
) -> Iterator[tuple[Batch, ...]]:
    """Step by step from a position to the end of its epoch: the batches of these ranks.

    Of a step with several microbatches, each rank's first one, then each rank's second one.
    """
    ranks = tuple(ranks)
    indices = order(position.samples, position.seed, position.epoch, position.shuffle)
    while taken := dealing.taken(position.left):
        here = indices[position.consumed : position.consumed + taken]
        at = ("batch", position.epoch, position.consumed)
        for part in range(dealing.parts(taken)):
            yield tuple(
                Batch(
                    random_numbers.derive(position.seed, *at, dealing.place(taken, rank, part)),
                    here[dealing.share(taken, rank, part)],
                    dealing.repeats(taken, rank, part),
                )
                for rank in ranks
            )
        position = position.after(dealing)


@dataclass(frozen=True)
class Microbatch:
    """A part of a step as it is handed out to the training."""

    data: Any
    """As the loader loads it."""
    weight: float
    """See `Dealing.weight`."""
    place: int
    """See `Dealing.place`."""
    last: bool
    """Whether the step has no further one."""


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
        ranks = ranks if world_size is None else world_size
        keep = kept()
        self._keeps = keep is not None
        self._dealing = Dealing(
            int(batch_size), ranks, drop_last, keep.shared_by(ranks) if keep is not None else 0
        )
        self._position = Position(int(seed), bool(shuffle), len(dataset))
        self.drawn = 0
        """Batches that this object has handed out."""
        self.within_step = False
        """Whether a step's microbatches were handed out in part."""
        self._saved_step: int | None = None
        self._iteration, self._epoch_is_set = 0, False
        least = self._dealing.whole * (batch_size if drop_last else 1)
        if len(dataset) < least:
            raise ValueError(
                f"the data set has {len(dataset)} samples, and each step of "
                f"{self._dealing.whole} ranks takes at least {least}; lower batch_size, use fewer "
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
        """Steps of the epoch under way, with those that were handed out before a checkpoint.

        Each is one batch, or with `workers.globalBatch: keep` its microbatches.
        """
        return self._position.batches + self._dealing.steps(self._position.left)

    @property
    def dealing(self) -> Dealing:
        """How the samples are dealt to the ranks."""
        return self._dealing

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of the epoch; of the next one, where none is left.

        An epoch that was set and is over has none.

        Raises:
            ValueError: with `workers.globalBatch: keep` it has microbatches.
        """
        if self._keeps:
            raise ValueError(
                use_microbatches("this loop takes one batch after the other") + "; for data that "
                "no step of the optimizer takes, make a torch.utils.data.DataLoader"
            )
        return (microbatch.data for microbatch in self.microbatches())

    def microbatches(self) -> Iterator[Microbatch]:
        """The same, with the place of each batch in its step."""
        if not self._epoch_is_set and not self._dealing.taken(self._position.left):
            self._begin(self._position.epoch + 1)
        self._iteration += 1
        iteration, part = self._iteration, 0
        for data in self._batches_from(self._position):
            if self._iteration != iteration:
                raise RuntimeError(
                    "a loop over the loader goes on after its position was changed by another "
                    "loop, set_epoch() or load_state_dict(); begin a new loop"
                )
            dealing, taken = self._dealing, self._dealing.taken(self._position.left)
            last = part + 1 == dealing.parts(taken)
            if last:
                self._position = self._position.after(dealing)
            self.within_step = not last
            self.drawn += 1
            weight = dealing.weight(taken, self._rank, part)
            yield Microbatch(data, weight, dealing.place(taken, self._rank, part), last)
            part = 0 if last else part + 1

    def continues_with(self, ranks: int) -> bool:
        """Whether what is left of the epoch can be dealt to any number of ranks up to this one."""
        left = self._position.left
        return self._dealing.drop_last or not 0 < left < ranks

    def state_dict(self) -> dict[str, Any]:
        """How far the training is in its data."""
        kept = {"step_samples": self._dealing.full} if self._keeps else {}
        return {**asdict(self._position), **kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue there.

        Raises:
            ValueError: the data set has another number of samples.
        """
        numbers = dict(state)
        self._saved_step = numbers.pop("step_samples", None)
        position = Position(**numbers)
        if position.samples != self._position.samples:
            raise ValueError(
                f"the loader was saved with a data set of {position.samples} samples, and this one "
                f"has {self._position.samples}; use the same data, or leave the loader out of the "
                "session"
            )
        self._dealing.steps(position.left)  # raises where too few samples are left
        self._move(position)

    def require_same_batch(self) -> None:
        """Refuse another batch of the optimizer than the restored one, where it is to be kept.

        Raises:
            ValueError: with one sentence.
        """
        if self._keeps and self._saved_step not in (None, self._dealing.full):
            raise ValueError(
                f"a step of the optimizer had {self._saved_step} samples and would have "
                f"{self._dealing.full} now, and workers.globalBatch is keep; give the loader the "
                "same batch_size with any number of ranks, since a step takes that of all workers"
            )

    def _batches_from(self, position: Position) -> Iterator[Any]:
        """This rank's batches from a position to the end of its epoch."""
        raise NotImplementedError

    def _begin(self, epoch: int) -> None:
        self._move(replace(self._position, epoch=epoch, consumed=0, batches=0))

    def _move(self, position: Position) -> None:
        self._position, self.within_step = position, False
        self._iteration += 1


def loaded(
    dataset: Any, number: int, indices: list[int], collate: Callable[[Any], Any] = list
) -> Any:
    """The samples, or what is made of them, in whatever process this is.

    Args:
        dataset: one with `__getitem__`, or with `__getitems__`, which gets all indices at once.
        number: the random numbers that are drawn meanwhile follow from it.
        indices: of the samples.
        collate: gets the samples, as the `collate_fn` of a `DataLoader` does.
    """
    many = getattr(dataset, "__getitems__", None)
    with random_numbers.borrowed(number):
        return collate(many(indices) if many else [dataset[i] for i in indices])
