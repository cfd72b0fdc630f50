"""A `DataLoader` that a resumed training continues at the very sample."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from .. import random_numbers
from .position import Batch, Position, ResumableLoader, batches_from, loaded

_LOOK_EVERY_S = 0.1


class ResumableDataLoader(ResumableLoader, DataLoader):
    """A `torch.utils.data.DataLoader` that continues where a checkpoint was made.

    Pass it to the session, which saves its state with each checkpoint. Within an epoch each sample
    is handed out once, to one rank, also where the training was interrupted, and where it goes on
    with another number of workers: the samples that are left are dealt to the ranks that are there.
    What counts as seen is what was handed out to the training, not what worker processes have
    loaded in advance.

    A batch is loaded and collated with random numbers (PyTorch's, NumPy's and Python's) that follow
    from the seed, the epoch, its place there and the rank, so that random augmentation repeats
    itself too.

    The last batches of an epoch may have fewer samples. With `batch_size=1` some ranks may get two
    in the last step; not so with `workers.globalBatch: keep`.

    Args:
        dataset: one with `__getitem__` and `__len__`.
        batch_size: samples per rank and step. With `workers.globalBatch: keep` and fewer ranks, the
            most that a rank takes at once.
        shuffle: whether each epoch has an order of its own.
        seed: decides order and random numbers. A restored loader has the seed, and `shuffle`, that
            it was saved with.
        drop_last: leave out the samples at an epoch's end that do not fill every rank's batch.
        rank: of this process; default: its rank in `torch.distributed`.
        world_size: how many ranks take data; default: all in `torch.distributed`.
        options: everything else that a `DataLoader` takes, such as `num_workers`.

    Raises:
        TypeError: the data set has no indices, or no length.
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
        for name in ("sampler", "batch_sampler"):
            if options.pop(name, None) is not None:
                raise ValueError(
                    f"{name} chooses samples in an order that no checkpoint can repeat; leave it "
                    "out, as each rank gets its share by itself, and choose samples by "
                    "torch.utils.data.Subset(dataset, indices)"
                )
        if not options.get("in_order", True):
            raise ValueError(
                "in_order=False hands out batches in an order that no checkpoint can repeat; leave "
                "it out"
            )
        ResumableLoader.__init__(
            self, dataset, batch_size, shuffle, seed, drop_last, rank, world_size
        )
        # Otherwise the loader draws a number from the training's own random numbers per epoch.
        number = random_numbers.derive(int(seed), "workers")
        options.setdefault("generator", torch.Generator("cpu").manual_seed(number))
        theirs = options.pop("worker_init_fn", None)
        collate = options.pop("collate_fn", None) or default_collate
        DataLoader.__init__(
            self,
            _SeededBatches(dataset, collate),
            collate_fn=_as_it_is,
            batch_sampler=_BatchSampler(lambda: self._batches_to_load(self._position)),
            worker_init_fn=partial(begin_process, theirs),
            **options,
        )

    def _batches_from(self, position: Position) -> Iterator[Any]:
        del position  # the sampler begins there
        with torch.device("cpu"):  # PyTorch draws there, whatever the default device is
            batches = DataLoader.__iter__(self)
        yield from batches

    def _batches_to_load(self, position: Position) -> Iterator[Batch]:
        """This rank's batches from a position on; worker processes load them in advance."""
        for (batch,) in batches_from(position, self._dealing, [self._rank]):
            yield batch


class _BatchSampler(Sampler):
    def __init__(self, batches: Callable[[], Iterator[Batch]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return self._batches()


class _SeededBatches(Dataset):
    """Loads and collates each batch with random numbers of its own, in whatever process that is."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any]) -> None:
        self.dataset, self._collate = dataset, collate

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getitems__(self, batch: Batch) -> Any:
        return loaded(self.dataset, batch.number, batch.indices.tolist(), self._collate)


def _as_it_is(batch: Any) -> Any:
    return batch


def begin_process(theirs: Callable[[int], Any] | None, worker_id: int) -> None:
    """The `worker_init_fn` of a loader; calls the user's own one.

    PyTorch has such a process look every 5 s whether the training process is alive. Meanwhile it
    keeps the sockets open that it has inherited, by whose end others see that a rank is lost.
    """
    threading.Thread(target=_end_with, args=(os.getppid(),), name="parent", daemon=True).start()
    if theirs is not None:
        theirs(worker_id)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os._exit(1)
