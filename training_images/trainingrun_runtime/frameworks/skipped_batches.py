"""Data loaders that begin in the middle of an epoch, without loading what was trained on before."""

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ..data.position import ResumableLoader


def require_usable(loader: Any) -> None:
    """Refuse a loader that a framework's trainer cannot use.

    Raises:
        TypeError: it is one of this package, whose position only a session's own loop can know.
    """
    if isinstance(loader, ResumableLoader):
        raise TypeError(
            f"the trainer's loader is a {type(loader).__name__}, which only a loop over "
            "session.batches() can use; pass a torch.utils.data.DataLoader: it is continued where "
            "the checkpoint was made, too"
        )


def begin_at(loader: Any, epoch: int, batches: int) -> bool:
    """Have a loader's next iteration be that of an epoch, from a batch on.

    The order of the epoch has to follow from its number, as that of a DistributedSampler does.

    Args:
        loader: a `DataLoader` of PyTorch's or of a framework.
        epoch: number of the epoch, from 0.
        batches: how many of its batches are left out.

    Returns:
        Whether it does; otherwise the batches have to be drawn and dropped.
    """
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    for each in {id(sampler): sampler, id(inner): inner}.values():
        if set_epoch := getattr(each, "set_epoch", None):
            set_epoch(epoch)
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return not batches
    if loader.batch_sampler is None:
        return not batches
    # A DataLoader refuses the assignment, since one that is under way would not see it.
    object.__setattr__(loader, "batch_sampler", _FirstLeftOut(loader.batch_sampler, batches))
    return True


class _FirstLeftOut:
    """A batch sampler whose first iteration leaves out its first batches."""

    def __init__(self, batches: Any, left_out: int) -> None:
        self._batches, self._left_out = batches, left_out

    def __iter__(self) -> Iterator[Any]:
        left_out, self._left_out = self._left_out, 0
        return itertools.islice(iter(self._batches), left_out, None)

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
