"""A parameter whose gradient is zero goes on moving, also after a restore; one without does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support import checkpoints
from support.sharded_models import HSDP, a_model, one_rank
from trainingrun_runtime.checkpoints import snapshot
from trainingrun_runtime.checkpoints.downloads import LocalFiles
from trainingrun_runtime.checkpoints.gradients import AccumulatedGradients
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.checkpoints.state_comparison import Comparison
from trainingrun_runtime.survivors.last_step import LastStep

SPARSE = 3
"""Rows that a step uses of the embedding."""


class Training:
    """A layer that is used in the first two steps, one that never is, and one that always is."""

    def __init__(self, optimizer: Callable[[Any], torch.optim.Optimizer], sparse: bool) -> None:
        torch.manual_seed(0)
        self.model = nn.ModuleDict(
            {
                "always": nn.Linear(4, 4),
                "at_first": nn.Embedding(8, 4, sparse=sparse),
                "never": nn.Linear(4, 4),
            }
        )
        self.optimizer = optimizer(self.model.parameters())

    @property
    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def step(self, number: int, set_to_none: bool = False) -> None:
        self.optimizer.zero_grad(set_to_none=set_to_none)
        found = self.model["always"](torch.full((2, 4), number + 1.0)).square().mean()
        if number < 2:
            found = found + self.model["at_first"](torch.arange(SPARSE)).square().mean()
        found.backward()
        self.optimizer.step()


def saved(training: Training, folder: Path) -> None:
    objects = training.objects
    states = snapshot.encoded(objects, objects)
    checkpoints.write(snapshot.take(states, Comparison(set(), {}), Position(3), 0, 1), folder)


OPTIMIZERS = [
    pytest.param(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), False, id="momentum"),
    pytest.param(lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1), False, id="decay"),
    pytest.param(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), True, id="sparse"),
]


@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize(("optimizer", "sparse"), OPTIMIZERS)
def test_a_layer_that_some_steps_do_not_use_is_the_same_after_a_restore(
    tmp_path: Path, optimizer: Callable[[Any], Any], sparse: bool, set_to_none: bool
) -> None:
    whole = Training(optimizer, sparse)
    for number in range(6):
        if number == 3:
            saved(whole, tmp_path)
        whole.step(number, set_to_none)
    restored = Training(optimizer, sparse)
    snapshot.restore(LocalFiles(tmp_path), restored.objects, 0, 1)
    for number in range(3, 6):
        restored.step(number, set_to_none)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(restored.model.state_dict()[name], value), name
    assert restored.model["never"].weight.grad is None


def test_a_survivor_saves_which_gradients_there_were(tmp_path: Path) -> None:
    training = Training(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), False)
    training.step(0)
    gradients = AccumulatedGradients([training.optimizer])
    last = LastStep(training.objects, 0, gradients)
    training.step(1)
    gradients.step_done()
    last.look(1.0)
    last.note(Position(2), {}, lambda _: Position(2))
    training.optimizer.zero_grad()  # the next step's
    assert last.take(2)["optimizer"].notes["gradients"] == [[0, 0], [1, 0], [2, 0]]


def test_restored_gradients_are_part_of_no_accumulation(tmp_path: Path) -> None:
    """No checkpoint waits for the optimizer's next step."""
    training = Training(lambda p: torch.optim.SGD(p, 0.1), False)
    training.step(0)
    saved(training, tmp_path)
    restored = Training(lambda p: torch.optim.SGD(p, 0.1), False)
    snapshot.restore(LocalFiles(tmp_path), restored.objects, 0, 1)
    assert restored.model["always"].weight.grad is not None
    gradients = AccumulatedGradients([restored.optimizer])
    gradients.step_begins()
    gradients.step_done()
    assert not gradients.wait()
    assert not gradients.hold_checkpoints()


def test_a_sharded_gradient_is_zero_again_too(tmp_path: Path) -> None:
    for rank in range(HSDP.ranks):
        with one_rank(rank, HSDP.ranks):
            model, optimizer = a_model(HSDP, trained=True)
            objects = {"model": model, "optimizer": optimizer}
            states = snapshot.encoded(objects, objects)
            comparison = Comparison(set(), {})
            files = snapshot.take(states, comparison, Position(3), rank, HSDP.ranks)
            checkpoints.write(files, tmp_path)
    with one_rank(1, HSDP.ranks):
        model, optimizer = a_model(HSDP, trained=False)
        objects = {"model": model, "optimizer": optimizer}
        snapshot.restore(LocalFiles(tmp_path), objects, 1, HSDP.ranks)
        gradient = model.weight.grad
        assert type(gradient) is type(model.weight.detach())
        assert not gradient.to_local().any()
