"""Loops over Accelerate's loaders: which batches they take where an epoch has several loops.

Of the session Ray is a stand-in (`support.session_without_ray`).
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from support.session_without_ray import Run
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
