"""What a session keeps of Accelerate's mixed precision: the scaler of the loss.

Accelerate's optimizer and PyTorch's scaler are the real ones, on a CPU, where `Accelerator` itself
refuses `mixed_precision="fp16"`; of the session Ray is a stand-in (`support.session_without_ray`).
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer

from support.session_without_ray import Run
from trainingrun_runtime.frameworks.accelerate import prepared_session

STEPS = 12


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    Accelerator(cpu=True)  # the state that its optimizers share
    return Run(monkeypatch, tmp_path, every_steps=7)


def a_scaler() -> Any:
    """One that doubles its factor after each second step, and begins far below what overflows."""
    return torch.amp.GradScaler("cpu", init_scale=2.0**100, growth_interval=2)


class Training:
    """A model whose gradients overflow where their factor is too large."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 1)
        self.scaler = a_scaler()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.optimizer = AcceleratedOptimizer(optimizer, scaler=self.scaler)

    def step(self, number: int) -> None:
        torch.manual_seed(number)
        loss = (self.model(torch.randn(8, 4)) - 1).square().mean() * 2.0**24
        self.scaler.scale(loss).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> list[Any]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def trained(run: Run, until: int = STEPS, **more: Any) -> Training:
    training = Training()
    session = prepared_session(model=training.model, optimizer=training.optimizer, **more)
    for step in session.steps(until):
        training.step(step)
    return training


def test_the_scaler_of_a_prepared_optimizer_goes_on_after_a_loss(run: Run) -> None:
    run.begin()
    whole = trained(run)
    run.end()
    at_seven = run.checkpoints[0]
    assert at_seven.position.step == 7

    run.begin(at_seven)
    resumed = trained(run)
    assert resumed.scaler.state_dict() == whole.scaler.state_dict()
    assert whole.scaler.get_scale() not in (a_scaler().get_scale(), 1.0)
    assert all(map(torch.equal, resumed.weights(), whole.weights()))


def names(run: Run) -> set[str]:
    assert run.session is not None
    return set(run.session._context.objects.objects)


def test_a_scaler_that_the_code_passes_itself_is_kept_once(run: Run) -> None:
    run.begin()
    training = Training()
    prepared_session(model=training.model, optimizer=training.optimizer, mine=training.scaler)
    assert names(run) == {"model", "optimizer", "mine"}


def test_optimizers_that_share_a_scaler_have_it_once_beside_an_object_of_its_name(run: Run) -> None:
    run.begin()
    training = Training()
    other = AcceleratedOptimizer(
        torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), scaler=training.scaler
    )
    prepared_session(first=training.optimizer, other=other, scaler=torch.Generator())
    assert names(run) == {"first", "other", "scaler", "scaler1"}


def test_without_a_scaler_there_is_none(run: Run) -> None:
    run.begin()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    prepared_session(optimizer=AcceleratedOptimizer(optimizer))
    assert names(run) == {"optimizer"}
