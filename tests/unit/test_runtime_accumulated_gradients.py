"""It is known whether gradients wait for a later step of their optimizer."""

import pytest
import torch

from trainingrun_runtime.checkpoints import gradients
from trainingrun_runtime.checkpoints.gradients import AccumulatedGradients
from trainingrun_runtime.session.session_context import SavedObjects


class Training:
    """A model that does steps of a session."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.gradients = AccumulatedGradients([self.optimizer])

    def step(self, *, backward: bool = True, used: bool, clear: bool = True) -> bool:
        self.gradients.step_begins()
        if backward:
            self.model(torch.ones(1, 2)).sum().backward()
        if used:
            self.use(clear)
        self.gradients.step_done()
        return self.gradients.wait()

    def use(self, clear: bool = True) -> None:
        self.optimizer.step()
        if clear:
            self.optimizer.zero_grad()


@pytest.fixture
def training() -> Training:
    return Training()


def test_gradients_wait_from_the_first_of_their_steps_to_the_last(training: Training) -> None:
    assert [training.step(used=n % 4 == 3) for n in range(8)] == 2 * [True, True, True, False]


def test_gradients_that_are_left_after_their_step_do_not_wait(training: Training) -> None:
    waits = [training.step(used=n % 3 == 2, clear=False) for n in range(6)]
    assert waits == 2 * [True, True, False]
    assert not training.step(backward=False, used=False), "as in an evaluation"


def test_gradients_that_are_used_after_the_loop_wait_no_longer(training: Training) -> None:
    assert training.step(used=False)
    training.use()
    assert not training.gradients.wait()


class Wrapper(torch.optim.Optimizer):
    """As Accelerate's, whose `step` calls PyTorch's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, object]]:  # type: ignore[override]
        return self.optimizer.param_groups


def test_a_step_by_a_wrapper_counts_for_the_optimizer(training: Training) -> None:
    training.gradients = AccumulatedGradients([Wrapper(training.optimizer)])
    assert not training.step(used=True, clear=False)
    assert training.step(used=False)


class Two:
    """Does the steps of several optimizers, and saves them."""

    def __init__(self, **held: object) -> None:
        vars(self).update(held)

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        pass


@pytest.mark.parametrize("way", ["attributes", "a list", "a dict"])
def test_gradients_wait_for_optimizers_that_an_object_of_the_session_has(
    training: Training, way: str
) -> None:
    other = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    held = {"other": other, "muon": training.optimizer}
    two = {
        "attributes": Two(**held),
        "a list": Two(each=[*held.values()]),
        "a dict": Two(each=held),
    }[way]
    names = {
        "attributes": ["optimizer.other", "optimizer.muon"],
        "a list": ["optimizer.each[0]", "optimizer.each[1]"],
        "a dict": ["optimizer.each['other']", "optimizer.each['muon']"],
    }[way]
    optimizers = SavedObjects({"model": training.model, "optimizer": two}).optimizers()
    assert [*optimizers] == names
    training.gradients = AccumulatedGradients(optimizers.values())
    assert [training.step(used=n % 4 == 3) for n in range(8)] == 2 * [True, True, True, False]


def test_an_optimizer_is_watched_once_and_under_the_name_that_the_session_has_for_it(
    training: Training,
) -> None:
    two = Two(muon=training.optimizer, again=[training.optimizer])
    for optimizer in (training.optimizer, Wrapper(training.optimizer)):
        found = SavedObjects({"two": two, "optimizer": optimizer}).optimizers()
        assert found == {"optimizer": optimizer}
    assert [*SavedObjects({"two": two}).optimizers()] == ["two.muon"]


def test_optimizers_that_no_object_of_the_session_saves_are_not_watched(training: Training) -> None:
    """A scheduler has one, a framework's trainer has some, and so may samples have."""
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 2)
    trainer = Two(trainer=Two(optimizers=[training.optimizer]), configs=[{"it": scheduler}])
    samples = Two(dataset=[training.optimizer] * 10_001)
    objects = {"scheduler": scheduler, "progress": trainer, "samples": samples}
    assert SavedObjects(objects).optimizers() == {}


def test_gradients_that_another_optimizer_has_used_do_not_wait(training: Training) -> None:
    """Adam for the first steps, and SGD for the others."""
    other = torch.optim.Adam(training.model.parameters())
    training.gradients = AccumulatedGradients([other, training.optimizer])
    assert not training.step(used=True, clear=False)
    assert training.step(used=False, clear=False)
    assert not training.step(used=True, clear=False)
    assert not training.step(backward=False, used=False)


def test_checkpoints_do_not_wait_for_an_optimizer_that_rests(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "RESTS_AFTER", 3)
    training.step(used=True)
    held = []
    for _ in range(4):
        assert training.step(used=False)
        held.append(training.gradients.hold_checkpoints())
    assert held == [True, True, False, False]
    training.step(used=True)
    training.step(used=False)
    assert training.gradients.hold_checkpoints()
