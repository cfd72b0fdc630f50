"""A loader of a framework begins in the middle of an epoch, with the batches that are left."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from trainingrun_runtime import ResumableDataLoader
from trainingrun_runtime.frameworks.driven_loop import (
    begin_at,
    require_repeatable,
    require_usable,
    samplers_of,
)

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
    loader = DataLoader(Endless(), batch_size=2)
    assert not begin_at(loader, 0, 3)
    assert begin_at(loader, 1, 0)


def test_a_loader_that_only_a_sessions_own_loop_can_use_is_refused() -> None:
    with pytest.raises(TypeError, match="ResumableDataLoader, which only a loop over"):
        require_usable(ResumableDataLoader(DATA, batch_size=4))
    require_usable(a_loader())


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class ByEpoch(Sampler):
    """Its order follows from the number of the epoch, and from what it wraps, if it does."""

    def __init__(self, inner: Sampler | None = None) -> None:
        self.inner, self.epoch = inner, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner or torch.randperm(40, generator=self._generator()).tolist())

    def __len__(self) -> int:
        return 40

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.epoch)


class Buckets(BatchSampler):
    """Draws the order of its batches by itself."""

    def __iter__(self) -> Iterator[list[int]]:
        batches = list(super().__iter__())
        return iter(batches[number] for number in torch.randperm(len(batches)))


def weighted(seed: int | None = None) -> Sampler:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return WeightedRandomSampler([1.0] * 40, 40, generator=generator)


class OfIndices(torch.utils.data.Dataset):
    """As Lightning wraps a sampler that it deals to the ranks."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return 40


@pytest.mark.parametrize(
    "loader",
    [
        pytest.param(lambda: DataLoader(DATA, batch_size=4), id="in its order"),
        pytest.param(lambda: DataLoader(DATA, batch_size=None), id="without batches"),
        pytest.param(lambda: DataLoader(DATA, sampler=[3, 1, 2]), id="a list"),
        pytest.param(a_loader, id="DistributedSampler"),
        pytest.param(lambda: DataLoader(DATA, sampler=ByEpoch()), id="set_epoch"),
        pytest.param(
            lambda: DataLoader(DATA, batch_sampler=BatchSampler(ByEpoch(), 4, drop_last=False)),
            id="batches of set_epoch",
        ),
        pytest.param(
            lambda: DataLoader(
                DATA, sampler=DistributedSampler(OfIndices(SequentialSampler(DATA)), 2, 1)
            ),
            id="an order that is dealt to the ranks",
        ),
        pytest.param(lambda: DataLoader(Endless(), batch_size=2), id="data without an index"),
        pytest.param(lambda: [[1, 2], [3, 4]], id="a loader of one's own"),
    ],
)
def test_an_order_that_follows_from_the_epoch_is_used_also_once_batches_are_left_out(
    loader: Callable[[], DataLoader],
) -> None:
    usable = loader()
    require_repeatable(usable)
    begin_at(usable, 1, 1)
    require_repeatable(usable)


@pytest.mark.parametrize(
    ("loader", "named"),
    [
        (lambda: DataLoader(DATA, shuffle=True), "RandomSampler"),
        (lambda: DataLoader(DATA, sampler=weighted()), "WeightedRandomSampler"),
        (lambda: DataLoader(DATA, sampler=weighted(seed=1)), "WeightedRandomSampler"),
        (lambda: DataLoader(DATA, sampler=weighted(), batch_size=None), "WeightedRandomSampler"),
        (lambda: DataLoader(DATA, sampler=SubsetRandomSampler(range(40))), "SubsetRandomSampler"),
        (lambda: DataLoader(DATA, sampler=ByEpoch(weighted())), "WeightedRandomSampler"),
        (
            lambda: DataLoader(DATA, sampler=DistributedSampler(OfIndices(weighted()), 2, 1)),
            "WeightedRandomSampler",
        ),
        (
            lambda: DataLoader(DATA, batch_sampler=Buckets(SequentialSampler(DATA), 4, False)),
            "Buckets",
        ),
    ],
)
def test_an_order_that_is_drawn_anew_at_each_start_is_refused(
    loader: Callable[[], DataLoader], named: str
) -> None:
    """A resumed run would leave out other samples than it has trained on, without a word."""
    with pytest.raises(ValueError, match=rf"its order from a {named}, which a resumed run cannot"):
        require_repeatable(loader())


def test_what_to_do_about_a_loader_that_only_shuffles_is_said_in_the_frameworks_words() -> None:
    with pytest.raises(ValueError, match="a resumed run cannot repeat; have it seeded"):
        require_repeatable(DataLoader(DATA, shuffle=True), "have it seeded")
    with pytest.raises(ValueError, match="give the loader a sampler that has set_epoch"):
        require_repeatable(DataLoader(DATA, sampler=weighted()), "have it seeded")


def test_samplers_that_hold_each_other_are_found_once() -> None:
    one, other = ByEpoch(), ByEpoch()
    one.inner, other.inner = other, one
    found = samplers_of(DataLoader(DATA, sampler=one, batch_size=None))
    assert [id(each) for each in found] == [id(one), id(other)]
