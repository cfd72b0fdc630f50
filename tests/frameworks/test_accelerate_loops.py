"""Loops over Accelerate's loaders: which batches they take where an epoch has several loops.

Of the session Ray is a stand-in (`support.session_without_ray`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from support.session_without_ray import Checkpoint, Run
from trainingrun_runtime import Session
from trainingrun_runtime.frameworks.accelerate import batches


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Session:
    Run(monkeypatch, tmp_path).begin()
    return Session()


def a_loader(samples: int) -> Any:
    loader = torch.utils.data.DataLoader(range(samples), batch_size=1)
    return Accelerator(cpu=True).prepare(loader)


def taken(session: Session, loader: Any) -> list[int]:
    return [int(batch) for batch in batches(session, loader)]


def test_each_epoch_takes_all_batches_also_of_another_loader(session: Session) -> None:
    loaders = [a_loader(4), a_loader(6)]
    found = [taken(session, loaders[epoch]) for epoch in session.epochs(2)]
    assert found == [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("second", [6, 4, 2])
def test_a_second_loader_of_an_epoch_is_refused_as_its_first_batches_would_be_left_out(
    session: Session, second: int
) -> None:
    for _ in session.epochs(1):
        taken(session, a_loader(4))
        with pytest.raises(ValueError, match=r"^batches\(session, loader\) counts .* of its own"):
            taken(session, a_loader(second))
        break


def test_other_steps_before_it_are_refused_as_well(session: Session) -> None:
    for _ in session.epochs(1):
        list(session.steps(2))
        with pytest.raises(ValueError, match="a loop before it has done 2 of the epoch's steps"):
            taken(session, a_loader(4))
        break


def test_the_same_loader_twice_in_an_epoch_is_refused_with_what_to_do(session: Session) -> None:
    for _ in session.epochs(1):
        loader = a_loader(4)
        taken(session, loader)
        with pytest.raises(ValueError, match=r"reached before .* epochs of its own"):
            taken(session, loader)
        break


class Buckets(BatchSampler):
    """Whole batches in an order of their own, which follows from the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        batches = list(super().__iter__())
        order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(self.epoch))
        return iter(batches[number] for number in order)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"batch_size": 2, "shuffle": True}, id="shuffles"),
        pytest.param({"batch_size": 2}, id="in its order"),
        pytest.param(
            {"batch_size": 2, "sampler": DistributedSampler(range(8), 1, 0)},
            id="DistributedSampler",
        ),
        pytest.param({"batch_sampler": Buckets(range(8), 2, False)}, id="batches of one's own"),
    ],
)
def test_a_resumed_run_takes_the_batches_that_are_left_in_the_same_order(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = DataLoaderConfiguration(use_seedable_sampler=True)

    def train(run: Run, restored: Checkpoint | None = None) -> dict[int, list[int]]:
        run.begin(restored)
        torch.manual_seed(0)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        loader = accelerator.prepare(DataLoader(range(8), **options))
        session, found = Session(seed=7), {}
        for _ in session.epochs(3):
            for batch in batches(session, loader):
                found[session.step] = batch.tolist()
        run.end()
        return found

    run = Run(monkeypatch, tmp_path, every_steps=1)
    undisturbed = train(run)
    (middle,) = [made for made in run.checkpoints if made.position.step == 6]
    resumed = train(Run(monkeypatch, tmp_path), middle)
    assert resumed == {step: undisturbed[step] for step in range(6, 12)}


def test_a_checkpoint_of_other_workers_is_refused_within_an_epoch_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With others the batches that are left out by their number are of other samples."""

    def train(epochs: int) -> list[int]:
        session = Session()
        found = [batch for _ in session.epochs(epochs) for batch in taken(session, a_loader(5))]
        made.end()
        return found

    made = Run(monkeypatch, tmp_path, every_steps=1)
    made.begin()
    train(2)
    (within,) = [each for each in made.checkpoints if each.position.step == 7]
    done = made.checkpoints[-1]
    made.begin(within, another_runs=True, ranks=2)
    said = r"^the checkpoint of step 7 is of 2 workers within an epoch, and batches\(\) of an Acc"
    with pytest.raises(ValueError, match=said):
        train(3)
    made.begin(done, another_runs=True, ranks=2)
    assert train(3) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("kind", [WeightedRandomSampler, SubsetRandomSampler])
def test_samples_that_are_drawn_anew_at_each_start_are_refused(
    kind: Any, seeded: bool, session: Session
) -> None:
    """A resumed run would train on other samples than those that were left, without a word."""
    generator = torch.Generator().manual_seed(1) if seeded else None
    weights = ([1.0] * 8, 8) if kind is WeightedRandomSampler else (range(8),)
    sampler = kind(*weights, generator=generator)
    loader = Accelerator(cpu=True).prepare(DataLoader(range(8), batch_size=2, sampler=sampler))
    for _ in session.epochs(1):
        with pytest.raises(ValueError, match=rf"its order from a {kind.__name__}, which a resumed"):
            taken(session, loader)
        break


def test_a_shuffled_loader_is_told_of_accelerates_own_setting(session: Session) -> None:
    loader = Accelerator(cpu=True).prepare(DataLoader(range(8), shuffle=True))
    for _ in session.epochs(1):
        with pytest.raises(ValueError, match="cannot repeat; make the accelerator with dataload"):
            taken(session, loader)
        break


@pytest.mark.parametrize("repeatable", [True, False])
def test_batches_that_are_dealt_to_several_ranks_count_as_what_is_dealt(
    repeatable: bool, session: Session
) -> None:
    sampler = None if repeatable else RandomSampler(range(8))
    loader = prepare_data_loader(
        DataLoader(range(8), batch_size=2, sampler=sampler),
        num_processes=2,
        process_index=1,
        put_on_device=False,
    )
    for _ in session.epochs(1):
        if repeatable:
            assert list(map(len, map(list, batches(session, loader)))) == [2, 2]
        else:
            with pytest.raises(ValueError, match="shuffles in an order that a resumed run cannot"):
                taken(session, loader)
        break


def test_a_batch_sampler_whose_batches_are_dealt_is_told_of_the_epoch(session: Session) -> None:
    sampler = Buckets(range(8), 2, False)
    loader = prepare_data_loader(
        DataLoader(range(8), batch_sampler=sampler),
        num_processes=2,
        process_index=1,
        put_on_device=False,
    )
    for epoch in session.epochs(3):
        list(batches(session, loader))
        assert sampler.epoch == epoch


def test_dropout_draws_the_same_in_the_first_step_of_a_resumed_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A loader draws a number as it begins, which is within that step."""

    def train(run: Run, restored: Checkpoint | None = None) -> dict[int, torch.Tensor]:
        run.begin(restored)
        loader = a_loader(4)
        session, found = Session(seed=7), {}
        for _ in session.epochs(2):
            for _ in batches(session, loader):
                found[session.step] = torch.nn.functional.dropout(torch.ones(16))
        run.end()
        return found

    run = Run(monkeypatch, tmp_path, every_steps=1)
    undisturbed = train(run)
    for step in (2, 4):  # amid an epoch, and at its end
        (made,) = [each for each in run.checkpoints if each.position.step == step]
        resumed = train(Run(monkeypatch, tmp_path), made)
        assert sorted(resumed) == list(range(step, 8))
        assert all(torch.equal(dropped, undisturbed[at]) for at, dropped in resumed.items())
