"""A `DataLoader` that a resumed training continues at the very sample."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from .. import random_numbers
from . import load_process
from .epoch_order import Dealing, order


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


class ResumableDataLoader(DataLoader):
    """A `torch.utils.data.DataLoader` that continues where a checkpoint was made.

    Pass it to the session, which saves its state with each checkpoint. Within an epoch each sample
    is handed out once, to one rank, also where the training was interrupted, and where it goes on
    with another number of workers: the samples that are left are dealt to the ranks that are there.
    What counts as seen is what was handed out to the training, not what worker processes have
    loaded in advance.

    A batch is loaded with random numbers (PyTorch's, NumPy's and Python's) that follow from the
    seed, the epoch, its place there and the rank, so that random augmentation repeats itself too.

    The last batches of an epoch may have fewer samples. With `batch_size=1` some ranks may get two
    in the last step.

    Args:
        dataset: one with `__getitem__` and `__len__`.
        batch_size: samples per rank and step.
        shuffle: whether each epoch has an order of its own.
        seed: decides order and random numbers. A restored loader has the seed, and `shuffle`, that
            it was saved with.
        drop_last: leave out the samples at an epoch's end that do not fill every rank's batch.
        rank: of this process; default: its rank in `torch.distributed`.
        world_size: how many ranks take data; default: all in `torch.distributed`.
        options: everything else that a `DataLoader` takes, such as `num_workers`.

    Raises:
        TypeError: the data set has no indices.
        ValueError: there are fewer samples than ranks, or an option would change the order.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = True,
        *,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise TypeError(
                f"{type(dataset).__name__} is an IterableDataset, whose samples have no index to "
                "continue at; use one with __getitem__ and __len__, or torchdata's "
                "StatefulDataLoader with a data set that has state_dict and load_state_dict"
            )
        if not options.get("in_order", True):
            raise ValueError(
                "in_order=False hands out batches in an order that no checkpoint can repeat; leave "
                "it out"
            )
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it takes 1 or more")
        distributed = dist.is_available() and dist.is_initialized()
        own_rank, ranks = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
        self._rank = own_rank if rank is None else rank
        self._dealing = Dealing(batch_size, ranks if world_size is None else world_size, drop_last)
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
        # Otherwise the loader draws a number from the training's own random numbers per epoch.
        number = random_numbers.derive(int(seed), "workers")
        options.setdefault("generator", torch.Generator().manual_seed(number))
        theirs = options.pop("worker_init_fn", None)
        super().__init__(
            _SeededBatches(dataset),
            batch_sampler=_BatchSampler(lambda: self._batches_to_load(self._position)),
            worker_init_fn=partial(load_process.begin, theirs),
            **options,
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
        for batch in super().__iter__():
            if self._iteration != iteration:
                raise RuntimeError(
                    "a loop over the loader goes on after its position was changed by another "
                    "loop, set_epoch() or load_state_dict(); begin a new loop"
                )
            self._position = self._after_a_batch(self._position)
            self.drawn += 1
            yield batch

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

    def _begin(self, epoch: int) -> None:
        self._move(replace(self._position, epoch=epoch, consumed=0, batches=0))

    def _move(self, position: Position) -> None:
        self._position = position
        self._iteration += 1

    def _after_a_batch(self, position: Position) -> Position:
        return replace(
            position,
            consumed=position.consumed + self._dealing.taken(position.left),
            batches=position.batches + 1,
        )

    def _batches_to_load(self, position: Position) -> Iterator["_Batch"]:
        """This rank's batches from a position on; worker processes load them in advance."""
        indices = order(position.samples, position.seed, position.epoch, position.shuffle)
        while taken := self._dealing.taken(position.left):
            here = indices[position.consumed : position.consumed + taken]
            place = ("batch", position.epoch, position.consumed, self._rank)
            yield _Batch(
                random_numbers.derive(position.seed, *place),
                here[self._dealing.share(taken, self._rank)].tolist(),
            )
            position = self._after_a_batch(position)


@dataclass(frozen=True)
class _Batch:
    """What a worker process is asked for."""

    number: int
    indices: list[int]


class _BatchSampler(Sampler):
    def __init__(self, batches: Callable[[], Iterator[_Batch]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[_Batch]:
        return self._batches()


class _SeededBatches(Dataset):
    """Loads each batch with random numbers of its own, in whatever process that is."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getitems__(self, batch: _Batch) -> Any:
        many = getattr(self.dataset, "__getitems__", None)
        with random_numbers.borrowed(batch.number):
            return many(batch.indices) if many else [self.dataset[i] for i in batch.indices]
