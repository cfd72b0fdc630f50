"""A loader of a framework begins in the middle of an epoch, with the batches that are left."""

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from trainingrun_runtime import ResumableDataLoader
from trainingrun_runtime.frameworks.driven_loop import begin_at, require_usable

DATA = TensorDataset(torch.arange(40))


class Loads(TensorDataset):
    """Notes what is loaded."""

    def __init__(self) -> None:
        super().__init__(torch.arange(40))
        self.loaded: list[int] = []

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        self.loaded.append(index)
        return super().__getitem__(index)


def a_loader(data: TensorDataset = DATA) -> DataLoader:
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, 2, 1, seed=5))


def batches(loader: DataLoader) -> list[list[int]]:
    return [batch[0].tolist() for batch in loader]


def test_the_batches_that_are_left_follow_without_loading_the_others() -> None:
    whole = a_loader()
    whole.sampler.set_epoch(3)  # type: ignore[attr-defined]
    data = Loads()
    loader = a_loader(data)
    assert begin_at(loader, 3, 2)
    rest = batches(loader)
    assert rest == batches(whole)[2:]
    assert data.loaded == [index for batch in rest for index in batch]
    assert len(loader) == 5


def test_the_next_epoch_is_whole() -> None:
    whole, loader = a_loader(), a_loader()
    begin_at(loader, 0, 4)
    assert len(batches(loader)) == 1
    for each in (whole, loader):
        each.sampler.set_epoch(1)  # type: ignore[attr-defined]
    assert batches(loader) == batches(whole)


def test_data_without_an_index_has_to_be_drawn_and_dropped() -> None:
    class Endless(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

    loader = DataLoader(Endless(), batch_size=2)
    assert not begin_at(loader, 0, 3)
    assert begin_at(loader, 1, 0)


def test_a_loader_that_only_a_sessions_own_loop_can_use_is_refused() -> None:
    with pytest.raises(TypeError, match="ResumableDataLoader, which only a loop over"):
        require_usable(ResumableDataLoader(DATA, batch_size=4))
    require_usable(a_loader())
