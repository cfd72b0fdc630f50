"""An optimizer whose work a loss would cost is told of, and no other one."""

from typing import Any

import pytest
import torch

from trainingrun_runtime.session.optimizer_advice import UNCOUNTED_STEPS, OptimizerAdvice


class Loop:
    """A session's steps, and what is told in them."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(2, 1)
        self.step: int | None = None
        self.told: list[str] = []

    def watch(self, **objects: Any) -> None:
        OptimizerAdvice({"model": self.model, **objects}, lambda: self.step, self.told.append)

    def do(self, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
        for _ in range(steps):
            self.step = None if self.step is None else self.step + 1
            self.model(torch.ones(1, 2)).sum().backward()
            optimizer.step()


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_one_that_is_not_the_session_s_is_told_once_it_does_a_second_step(loop: Loop) -> None:
    optimizer = torch.optim.Adam(loop.model.parameters())
    loop.watch()
    loop.step = 0
    loop.do(optimizer, 1)
    assert loop.told == []
    loop.do(optimizer, 3)
    (sentence,) = loop.told
    assert sentence.startswith("the session has a model and not its Adam, ")


def test_one_of_the_session_is_not(loop: Loop) -> None:
    optimizer = torch.optim.Adam(loop.model.parameters())
    loop.watch(optimizer=optimizer)
    loop.step = 0
    loop.do(optimizer)
    assert loop.told == []


class Trainer:
    """Has optimizers in any way, and saves them."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


@pytest.mark.parametrize("way", ["an attribute", "a list", "a dict"])
def test_one_that_another_object_of_the_session_has_is_not(loop: Loop, way: str) -> None:
    optimizer = torch.optim.Adam(loop.model.parameters())
    held: Any = {"an attribute": optimizer, "a list": [optimizer], "a dict": {"adam": optimizer}}
    loop.watch(trainer=Trainer(held=held[way]))
    loop.step = 0
    loop.do(optimizer)
    assert loop.told == []


def test_one_of_the_session_that_has_loaded_a_state_in_its_loop_is_not(loop: Loop) -> None:
    """It has other groups of parameters from then on."""
    optimizer = torch.optim.Adam(loop.model.parameters())
    loop.watch(optimizer=optimizer)
    loop.step = 0
    loop.do(optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    loop.do(optimizer)
    assert loop.told == []


def test_one_that_only_its_scheduler_has_is_told(loop: Loop) -> None:
    optimizer = torch.optim.Adam(loop.model.parameters())
    loop.watch(scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2))
    loop.step = 0
    loop.do(optimizer)
    assert len(loop.told) == 1


class Averaging(torch.optim.SGD):
    """Keeps a tensor under a name, beside what it keeps for its parameters."""

    average: Any = torch.ones(3)

    def step(self, closure: Any = None) -> Any:
        self.state["average"] = self.average
        return super().step(closure)


def test_one_that_keeps_a_tensor_of_its_own_is_told_and_its_steps_raise_nothing(loop: Loop) -> None:
    optimizer = Averaging(loop.model.parameters(), lr=0.1)
    loop.watch()
    loop.step = 0
    loop.do(optimizer)
    (sentence,) = loop.told
    assert sentence.startswith("the session has a model and not its Averaging, ")


def test_whatever_one_keeps_its_steps_raise_nothing(loop: Loop) -> None:
    class Unreadable(dict[Any, Any]):
        def values(self) -> Any:
            raise RuntimeError("not now")

    optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    optimizer.state = Unreadable()  # type: ignore[assignment]
    loop.watch()
    loop.step = 0
    loop.do(optimizer)
    assert loop.told == []


@pytest.mark.parametrize("of", ["no state", "empty states", "another model", "each step a new one"])
def test_one_that_has_nothing_to_lose_is_not(loop: Loop, of: str) -> None:
    loop.watch()
    loop.step = 0
    if of == "no state":
        loop.do(torch.optim.SGD(loop.model.parameters(), lr=0.1))
    elif of == "empty states":
        optimizer = Averaging(loop.model.parameters(), lr=0.1)
        optimizer.average = None
        for number, parameter in enumerate(loop.model.parameters()):
            optimizer.state[parameter] = {"momentum_buffer": None} if number else {}
        loop.do(optimizer)
    elif of == "another model":
        other = torch.nn.Linear(1, 1)
        other.weight.grad = torch.ones(1, 1)
        loop.do(torch.optim.Adam(other.parameters()))
    else:
        for _ in range(3):
            loop.do(torch.optim.Adam(loop.model.parameters()), 1)
    assert loop.told == []


def test_steps_before_the_first_loop_are_told_of(loop: Loop) -> None:
    optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    loop.watch(optimizer=optimizer)
    loop.do(optimizer, UNCOUNTED_STEPS - 1)
    assert loop.told == []
    loop.do(optimizer, 5)
    (sentence,) = loop.told
    assert sentence.endswith("loop over session.steps(n) or session.batches(loader)")
