"""A buffer that no checkpoint holds and that training changes is told of, and no other one is.

The sessions are those of `support.session_without_ray`, whose Ray is a stand-in.
"""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.session_without_ray import Run
from trainingrun_runtime import Session
from trainingrun_runtime.session import unsaved_buffers


class WithBuffer(torch.nn.Module):
    """A layer beside a buffer that is in no `state_dict`.

    Args:
        buffer: the first one.
        change: called with the module in each forward pass.
    """

    def __init__(
        self, buffer: torch.Tensor | None, change: Callable[["WithBuffer"], object] = id
    ) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.register_buffer("kept", buffer, persistent=False)
        self.kept: torch.Tensor
        self._change = change

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self._change(self)
        found: torch.Tensor = self.layer(rows)
        return found


def told(patch: pytest.MonkeyPatch, folder: Path, model: torch.nn.Module) -> list[str]:
    """What the warnings say of a run that trains the model for a few steps."""
    run = Run(patch, folder)
    run.begin()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in Session(seed=0, model=model, optimizer=optimizer).steps(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    run.end()
    return run.advice


def counts_in_place(model: WithBuffer) -> None:
    model.kept += 1


def replaces_it(model: WithBuffer) -> None:
    model.kept = model.kept * 0.9 + 0.1


def grows(model: WithBuffer) -> None:
    model.kept = torch.arange(len(model.kept) + 1.0)


@pytest.mark.parametrize("change", [counts_in_place, replaces_it])
def test_a_count_or_an_average_that_begins_anew_is_told_of_once(
    change: Callable[[WithBuffer], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = torch.nn.Sequential(WithBuffer(torch.zeros(()), change), torch.nn.Linear(1, 1))
    (advice,) = told(monkeypatch, tmp_path, model)
    assert advice.startswith("training changes model.0.kept, registered with persistent=False, so ")


def test_of_several_the_first_one_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    models = [WithBuffer(torch.zeros(2), counts_in_place) for _ in range(3)]
    for model in models:
        model.layer = torch.nn.Linear(4, 4)
    (advice,) = told(monkeypatch, tmp_path, torch.nn.Sequential(*models))
    assert "changes model.0.kept and 2 more, " in advice


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: WithBuffer(torch.arange(8.0).cos()), id="a rotary cache"),
        pytest.param(lambda: WithBuffer(torch.arange(8.0), grows), id="a table that grows"),
        pytest.param(lambda: WithBuffer(torch.tensor([math.nan])), id="no number"),
        pytest.param(lambda: WithBuffer(torch.eye(2).to_sparse()), id="a sparse one"),
        pytest.param(lambda: WithBuffer(torch.zeros(0)), id="an empty one"),
        pytest.param(lambda: WithBuffer(None), id="none yet"),
        pytest.param(
            lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)),
            id="one that is saved",
        ),
    ],
)
def test_nothing_is_told_of_others(
    model: Callable[[], torch.nn.Module], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert told(monkeypatch, tmp_path, model()) == []


def test_large_tables_are_not_copied_and_small_ones_beside_them_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(unsaved_buffers, "LARGEST_COPY", 100)
    table = WithBuffer(torch.zeros(26), counts_in_place)
    table.layer = torch.nn.Linear(4, 4)
    assert told(monkeypatch, tmp_path, table) == []
    both = torch.nn.Sequential(table, WithBuffer(torch.zeros(1), counts_in_place))
    (advice,) = told(monkeypatch, tmp_path, both)
    assert "changes model.1.kept, " in advice
