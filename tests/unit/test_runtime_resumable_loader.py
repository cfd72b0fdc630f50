"""A loader continues at the very sample, whatever was loaded in advance, with any world size."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    WeightedRandomSampler,
    default_collate,
)

from trainingrun_runtime import ResumableDataLoader
from trainingrun_runtime.checkpoints.encoding import decode, encode
from trainingrun_runtime.data.drawn_batches import DrawnBatches


class Numbers(Dataset):
    """Its samples are their indices, and what random augmentation would draw for them."""

    def __init__(self, samples: int, augment: bool = False) -> None:
        self.samples, self.augment = samples, augment

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        return (index, *drawn_numbers()) if self.augment else index


def drawn_numbers() -> tuple[float, float, float]:
    return torch.rand(()).item(), np.random.random(), random.random()


def augmented_batch(samples: list[Any]) -> list[torch.Tensor]:
    """As of a `collate_fn` that mixes or masks the samples of a batch."""
    augmented = [(index, *drawn_numbers()) for index, *_ in samples]
    return [*default_collate(samples)[1:], *default_collate(augmented)]


def a_loader(samples: int = 20, state: Any = None, **options: Any) -> ResumableDataLoader:
    options = {"batch_size": 2, "rank": 0, "world_size": 1, "seed": 3, **options}
    loader = ResumableDataLoader(Numbers(samples), **options)
    if state is not None:
        loader.load_state_dict(decode(encode(state, "loader")))
    return loader


def ranks(world_size: int, state: Any, samples: int, **options: Any) -> list[ResumableDataLoader]:
    return [
        a_loader(samples, state, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


EPOCHS = 3
RANKS, BATCH_SIZE, STEPS = st.integers(1, 6), st.integers(1, 5), st.integers(0, 15)


def steps(loaders: Sequence[ResumableDataLoader]) -> Iterator[tuple[int, list[int]]]:
    """Epoch and samples of each step that is left, all ranks together."""
    for epoch in range(loaders[0].epoch, EPOCHS):
        for loader in loaders:
            loader.set_epoch(epoch)
        for parts in zip(*loaders, strict=True):
            assert len({str(each.state_dict()) for each in loaders}) == 1
            yield epoch, [int(i) for part in parts for i in part]


@given(
    samples=st.integers(6, 40),
    interrupted=st.lists(st.tuples(RANKS, BATCH_SIZE, STEPS), max_size=8),
    last=st.tuples(RANKS, BATCH_SIZE, st.just(1000)),
)
@settings(max_examples=200)
def test_each_epoch_sees_each_sample_once_however_often_it_is_interrupted(
    samples: int, interrupted: list[tuple[int, int, int]], last: tuple[int, int, int]
) -> None:
    """Any sequence of interruptions, each followed by any number of ranks and size of batches."""
    seen: list[Counter[int]] = [Counter() for _ in range(EPOCHS)]
    state = None
    for workers, batch_size, count in [*interrupted, last]:
        left = samples - state["consumed"] if state is not None else samples
        # Fewer samples than ranks are refused.
        loaders = ranks(min(workers, left or workers), state, samples, batch_size=batch_size)
        for epoch, part in islice(steps(loaders), count):
            seen[epoch].update(part)
        state = loaders[0].state_dict()
    assert seen == [Counter(range(samples))] * EPOCHS


@pytest.mark.parametrize("drop_last", [False, True], ids=["all samples", "drop_last"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(2, 2, id="2 ranks"),
        pytest.param(2, 3, id="2 ranks, then 3"),
        pytest.param(4, 1, id="4 ranks, then 1"),
    ],
)
@pytest.mark.parametrize("done", [0, 1, 4], ids=lambda n: f"after {n} steps")
def test_the_rest_of_an_epoch_is_dealt_to_the_ranks_that_are_there(
    before: int, after: int, done: int, drop_last: bool
) -> None:
    options = {"drop_last": drop_last}
    first = ranks(before, None, 50, **options)
    rounds = zip(*first, strict=True)
    seen = [int(i) for _ in range(done) for part in next(rounds) for i in part]
    assert len(seen) == done * before * 2
    second = ranks(after, first[0].state_dict(), 50, **options)
    assert second[0].epoch == 0
    left = len(second[0]) - done
    rest = [[int(i) for part in parts for i in part] for parts in zip(*second, strict=True)]
    assert len(rest) == left
    seen += [i for each in rest for i in each]
    assert len(set(seen)) == len(seen)
    assert len(seen) == (50 if not drop_last else 50 - (50 - done * before * 2) % (after * 2))
    assert [each.state_dict() for each in second] == [second[0].state_dict()] * after


@pytest.mark.parametrize("persistent", [False, True], ids=["new workers", "persistent workers"])
def test_what_worker_processes_have_loaded_in_advance_does_not_count(persistent: bool) -> None:
    options = {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": persistent}
    whole = [each.tolist() for each in a_loader(30)]
    loader = a_loader(30, **options)
    batches = iter(loader)
    begun = [next(batches).tolist() for _ in range(4)]
    assert loader.state_dict()["consumed"] == 8
    resumed = a_loader(30, loader.state_dict(), **options)
    assert begun + [each.tolist() for each in resumed] == whole
    # An epoch that is left early, and the next ones, in the same worker processes.
    loader.set_epoch(1)
    second = [each.tolist() for each in loader]
    assert sorted(i for each in second for i in each) == list(range(30))
    loader.set_epoch(2)
    third = [each.tolist() for each in loader]
    assert whole != second != third != whole


@pytest.mark.parametrize("workers", [0, 1, 2], ids=lambda n: f"{n} workers")
@pytest.mark.parametrize(
    ("collate", "numbers"), [(None, 36), (augmented_batch, 72)], ids=["samples", "and collate_fn"]
)
def test_random_augmentation_repeats_itself_and_leaves_the_training_its_numbers(
    workers: int, collate: Any, numbers: int
) -> None:
    def drawn(state: Any, number: int, count: int) -> list[Any]:
        options = {"rank": 1, "world_size": 2, "num_workers": number, "collate_fn": collate}
        loader = ResumableDataLoader(Numbers(24, augment=True), 4, seed=5, **options)
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        found = [[part.tolist() for part in next(batches)] for _ in range(count)]
        return [found, loader.state_dict()]

    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    whole, _ = drawn(None, 0, 3)
    begun, state = drawn(None, workers, 1)
    rest, _ = drawn(state, workers, 2)
    assert begun + rest == whole
    drawn_once = {n for batch in whole for part in batch for n in part if isinstance(n, float)}
    assert len(drawn_once) == numbers
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


LOADS = """
import time
from trainingrun_runtime import ResumableDataLoader
def begin(number):
    print(f"{number}\\n", end="", flush=True)
batches = iter(ResumableDataLoader(range(100), num_workers=2, worker_init_fn=begin))
next(batches)
print("loaded", flush=True)
time.sleep(1000)
"""


def test_processes_that_load_data_end_at_once_with_the_training_process() -> None:
    """Until then they hold open what they have inherited: sockets to Ray, and here a pipe."""
    roots = [str(Path(__file__).parents[2] / root) for root in ("operator", "training_images")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    with subprocess.Popen(
        [sys.executable, "-c", LOADS], env=environment, stdout=subprocess.PIPE, text=True
    ) as training:
        assert training.stdout is not None
        lines = {training.stdout.readline() for _ in range(3)}
        assert lines == {"0\n", "1\n", "loaded\n"}, "the user's worker_init_fn is called as well"
        training.kill()
        began = time.monotonic()
        assert training.stdout.read() == ""
        assert time.monotonic() - began < 3


def test_epochs_follow_one_another() -> None:
    loader = a_loader(6)
    epochs = [[each.tolist() for each in loader] for _ in range(3)]
    assert loader.epoch == 2
    assert len({str(each) for each in epochs}) == 3
    again = a_loader(6, {**a_loader(6).state_dict(), "epoch": 2})
    assert [each.tolist() for each in again] == epochs[2]


def test_an_epoch_that_is_set_is_continued_and_not_begun_anew() -> None:
    loader = a_loader(6)
    loader.set_epoch(0)
    next(iter(loader))
    loader.set_epoch(0)
    assert (len(loader), len(list(loader)), loader.epoch) == (3, 2, 0)
    resumed = a_loader(6, loader.state_dict())  # at the end of the epoch
    resumed.set_epoch(0)
    assert (len(resumed), list(resumed), resumed.epoch) == (3, [], 0)
    resumed.set_epoch(1)
    assert (len(resumed), len(list(resumed)), resumed.epoch) == (3, 3, 1)


def test_the_state_decides_seed_and_order() -> None:
    loader = a_loader(20, seed=3)
    next(iter(loader))
    other = a_loader(20, loader.state_dict(), seed=4, shuffle=False)
    assert [e.tolist() for e in other] == [e.tolist() for e in a_loader(20, seed=3)][1:]


def test_a_loop_that_another_one_has_overtaken_is_refused() -> None:
    loader = a_loader(20)
    batches = iter(loader)
    next(batches)
    next(iter(loader))
    with pytest.raises(RuntimeError, match="a loop over the loader goes on after"):
        next(batches)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(4))


class WithoutLength:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_the_default_device_of_the_training_changes_no_batch(workers: int) -> None:
    samples = [torch.full((2,), float(number)) for number in range(8)]

    def batches() -> list[Any]:
        options = {"batch_size": 2, "rank": 0, "world_size": 1, "seed": 3, "num_workers": workers}
        return [batch.tolist() for batch in ResumableDataLoader(samples, **options)]

    expected = batches()
    torch.set_default_device("meta")  # as "cuda", on any machine
    try:
        assert batches() == expected
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        pytest.param(
            lambda: ResumableDataLoader(Stream()),
            TypeError,
            "Stream is an IterableDataset, whose samples have no index",
            id="a stream",
        ),
        pytest.param(
            lambda: a_loader(num_workers=2, in_order=False),
            ValueError,
            "in_order=False hands out batches in an order that no checkpoint",
            id="out of order",
        ),
        pytest.param(
            lambda: a_loader(3, world_size=4),
            ValueError,
            "has 3 samples, and each step of 4 ranks takes at least 4; lower",
            id="fewer samples than ranks",
        ),
        pytest.param(
            lambda: a_loader(7, world_size=4, drop_last=True),
            ValueError,
            "has 7 samples, and each step of 4 ranks takes at least 8; lower",
            id="fewer samples than a step takes",
        ),
        pytest.param(lambda: a_loader(batch_size=0), ValueError, "batch_size is 0", id="no size"),
        pytest.param(
            lambda: a_loader(batch_size=None),
            ValueError,
            "batch_size is None; it takes a whole number of 1 or more",
            id="no batches",
        ),
        pytest.param(
            lambda: a_loader(batch_size=4.0), ValueError, "batch_size is 4.0", id="no whole size"
        ),
        pytest.param(
            lambda: a_loader(sampler=WeightedRandomSampler([0.1] * 20, 20)),
            ValueError,
            "sampler chooses samples in an order that no checkpoint can repeat; leave it out",
            id="a sampler",
        ),
        pytest.param(
            lambda: a_loader(batch_sampler=BatchSampler(range(20), 4, drop_last=False)),
            ValueError,
            "batch_sampler chooses samples in an order",
            id="a sampler of batches",
        ),
        pytest.param(
            lambda: ResumableDataLoader(WithoutLength()),
            TypeError,
            "WithoutLength has no __len__",
            id="no length",
        ),
        pytest.param(
            lambda: a_loader(21, a_loader(20).state_dict()),
            ValueError,
            "saved with a data set of 20 samples, and this one has 21; use the same",
            id="other data",
        ),
        pytest.param(
            lambda: a_loader(20, {**a_loader(20).state_dict(), "consumed": 18}, world_size=3),
            ValueError,
            "2 samples are left in this epoch for 3 ranks",
            id="fewer samples left than ranks",
        ),
    ],
)
def test_what_cannot_be_continued_exactly_is_refused(make: Any, kind: type, said: str) -> None:
    with pytest.raises(kind, match=said):
        make()


class StandInForStatefulDataLoader:
    """The protocol of torchdata's `StatefulDataLoader`: it counts what it has handed out, and one
    that was saved at its end has nothing in its first loop.
    """

    def __init__(self, batches: int) -> None:
        self._batches, self._next, self._restored = batches, 0, False

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Any:
        begin, self._restored = (self._next if self._restored else 0), False
        for number in range(begin, self._batches):
            self._next = number + 1
            yield number

    def state_dict(self) -> dict[str, int]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next, self._restored = state["next"], True


@pytest.mark.parametrize("at", [1, 3], ids=["in its middle", "at its end"])
def test_a_loader_with_the_protocol_of_stateful_data_loader_goes_on(at: int) -> None:
    first = StandInForStatefulDataLoader(3)
    batches = DrawnBatches({"loader": first}).repeated(first)
    begun = [next(batches) for _ in range(at)]
    second = StandInForStatefulDataLoader(3)
    second.load_state_dict(first.state_dict())
    rest = DrawnBatches({"loader": second}).repeated(second)
    assert begun + [next(rest) for _ in range(7 - at)] == [0, 1, 2, 0, 1, 2, 0]


def test_a_loader_that_is_not_restored_is_refused() -> None:
    drawn = DrawnBatches({"loader": a_loader()})
    with pytest.raises(ValueError, match=r"Session\(loader=loader\): this list would begin anew"):
        next(drawn.repeated([1, 2]))


def test_a_loader_without_a_batch_is_refused() -> None:
    empty = StandInForStatefulDataLoader(0)
    with pytest.raises(ValueError, match="StandInForStatefulDataLoader has no batch"):
        next(DrawnBatches({"loader": empty}).repeated(empty))


def test_a_batch_that_is_drawn_before_its_step_is_refused() -> None:
    loader = a_loader(20)
    drawn = DrawnBatches({"loader": loader, "other": object()})
    batches = iter(loader)
    for _ in range(2):
        drawn.step_begins()
        next(batches)
        drawn.step_done()
    next(batches)
    with pytest.raises(RuntimeError, match="loader has handed out a batch before the step"):
        drawn.step_begins()


def test_the_time_until_an_item_is_there_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("trainingrun_runtime.data.drawn_batches.time.monotonic", lambda: now[0])

    def slow() -> Any:
        for number in range(3):
            now[0] += 2  # loading
            yield number

    drawn = DrawnBatches({})
    assert drawn.waited(5) is None
    for _ in drawn.timed(slow()):
        now[0] += 5  # training
    assert (drawn.waited(20), drawn.waited(0)) == (0.3, None)
    assert drawn.waited(3) == 1, "waits between the steps are no part of their time"
