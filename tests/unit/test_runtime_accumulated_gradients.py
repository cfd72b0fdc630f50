"""It is known whether gradients wait for a later step of their optimizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from support.session_without_ray import Run
from support.sharded_models import one_rank
from trainingrun_runtime.checkpoints import gradients
from trainingrun_runtime.checkpoints.gradients import AccumulatedGradients
from trainingrun_runtime.session.session import Session
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


def fsdp(mesh: tuple[int, ...], **options: Any) -> FSDPModule:
    """A linear layer of FSDP2, or with two dimensions of HSDP."""
    names = ("copy", "part")[-len(mesh) :]
    return fully_shard(
        torch.nn.Linear(6, 8), mesh=init_device_mesh("cpu", mesh, mesh_dim_names=names), **options
    )


IN_32_BITS = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@pytest.mark.parametrize(
    ("make", "exchange"),
    [
        pytest.param(lambda: fsdp((4,)), "set_requires_gradient_sync", id="FSDP2"),
        pytest.param(
            lambda: fsdp((4,), reshard_after_forward=False),
            "set_requires_gradient_sync",
            id="FSDP2, ZeRO-2",
        ),
        pytest.param(
            lambda: fsdp((4,), mp_policy=IN_32_BITS),
            "set_requires_gradient_sync",
            id="FSDP2 in mixed precision",
        ),
        pytest.param(lambda: fsdp((2, 2)), "set_requires_gradient_sync", id="HSDP"),
        pytest.param(lambda: fsdp((2, 2)), "set_requires_all_reduce", id="HSDP within replicas"),
    ],
)
def test_gradients_that_fsdp_holds_back_wait_too(
    make: Callable[[], Any], exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `grad` there is none of them: the step of a checkpoint would be done without them."""
    monkeypatch.setattr(gradients, "RESTS_AFTER", 5)
    with one_rank(0, 4):
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watching = AccumulatedGradients([optimizer])
        saved = SavedObjects({"model": model, "optimizer": optimizer})
        watching.watch_models(saved.models)

        def step(last: bool, used: bool) -> tuple[bool, bool]:
            watching.step_begins()
            getattr(model, exchange)(last)
            model(torch.ones(2, 6)).sum().backward()
            if used:
                optimizer.step()
                optimizer.zero_grad()
            watching.step_done()
            return watching.wait(), watching.hold_checkpoints()

        found = [step(last=n % 4 == 3, used=n % 4 == 3) for n in range(8)]
        assert found == 2 * [(True, True), (True, True), (True, True), (False, False)]
        # An optimizer's step that comes too early neither uses nor clears them.
        held = [step(last=False, used=True) for _ in range(5)]
        assert held == 4 * [(True, True)] + [(True, False)], "not for ever"


def test_a_session_waits_for_no_optimizer_that_it_does_not_have() -> None:
    with one_rank(0, 2):
        model: Any = fsdp((2,))
        watching = AccumulatedGradients([])
        watching.watch_models([model])
        model.set_requires_gradient_sync(False)
        model(torch.ones(2, 6)).sum().backward()
        assert not watching.wait()


def test_no_checkpoint_of_a_session_leaves_out_what_fsdp_holds_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Run(monkeypatch, tmp_path, every_steps=1)
    run.begin()
    with one_rank(0, 1):
        model: Any = fsdp((1,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = Session(model=model, optimizer=optimizer)
        for step in session.steps(6):
            last = step % 3 == 2
            model.set_requires_gradient_sync(last)
            model(torch.ones(2, 6)).sum().backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    assert [made.position.step for made in run.checkpoints] == [3, 6]


def test_a_model_that_averages_another_is_not_one_that_lacks_its_wrapper() -> None:
    """Its running means are each rank's own between two steps, and nothing can wrap it."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    average = torch.optim.swa_utils.AveragedModel(net)
    objects = {"model": net, "average": average, "optimizer": torch.optim.SGD(net.parameters())}
    assert SavedObjects(objects).unwrapped({"model", "average", "optimizer"}) == ["model"]
