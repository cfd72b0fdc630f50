"""Whether the ranks' parameters are kept equal, by the real DistributedDataParallel."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

from trainingrun_runtime.checkpoints.gradients import AccumulatedGradients
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.survivors.noted_steps import GradientExchange, NotedSteps
from trainingrun_runtime.survivors.watched_tensors import NotWhole
from trainingrun_runtime.worker import worker
from trainingrun_runtime.worker.step_consensus import StepValues


@pytest.fixture(autouse=True)
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Training:
    """A small model and its optimizer."""

    def __init__(self, wrap: bool = True, freeze: bool = False) -> None:
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        self.model: Any = DistributedDataParallel(net.requires_grad_(True)) if wrap else net
        if freeze:
            net[0].requires_grad_(False)
            self.model = DistributedDataParallel(net)
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        self.average = torch.optim.swa_utils.AveragedModel(net)
        self.exchange = GradientExchange(
            {"model": self.model, "optimizer": self.optimizer, "average": self.average}
        )

    def backward(self) -> None:
        self.model(torch.ones(2, 4)).sum().backward()

    def evaluate(self) -> None:
        with torch.no_grad():
            self.model(torch.ones(2, 4))

    def step(self) -> str | None:
        self.backward()
        return self.update()

    def update(self) -> str | None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.update_parameters(self.net)
        return self.exchange.doubt


def accumulates(training: Training) -> None:
    with training.model.no_sync():
        training.backward()


def compresses(training: Training) -> None:
    training.model.register_comm_hook(None, default_hooks.allreduce_hook)


@pytest.mark.parametrize(
    "first", [lambda t: None, accumulates, Training.evaluate, compresses], ids=lambda f: f.__name__
)
def test_a_step_with_exchanged_gradients_keeps_the_ranks_equal(
    first: Callable[[Training], object],
) -> None:
    training = Training()
    for _ in range(2):
        first(training)
        assert training.step() is None
        training.evaluate()
        first = Training.evaluate


def test_training_that_becomes_local_is_noticed_in_its_first_step() -> None:
    training = Training()
    assert training.step() is None
    with training.model.no_sync():
        assert training.step() == (
            "an optimizer has used gradients of model that were not exchanged"
        )
    assert training.step() is not None, "the ranks differ from then on"


def test_a_hook_that_trains_locally_later_is_noticed_before() -> None:
    training = Training()
    state = post_localSGD_hook.PostLocalSGDState(None, dist.group.WORLD, start_localSGD_iter=100)
    training.model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    assert training.step() == (
        "model has the hook post_localSGD_hook, which may leave out an exchange"
    )


@pytest.mark.parametrize(
    "hook",
    [
        powerSGD_hook.powerSGD_hook,
        powerSGD_hook.batched_powerSGD_hook,
        default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook),
    ],
    ids=["powerSGD", "batched", "in 16 bits"],
)
def test_a_hook_whose_sums_of_errors_no_checkpoint_has_is_told_of_once(
    hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no rank can save them for a lost one, whose sums are its own."""
    told: list[str] = []
    monkeypatch.setattr(worker, "_worker", SimpleNamespace(advise=told.append))
    training = Training()
    assert training.step() is None
    state = powerSGD_hook.PowerSGDState(dist.group.WORLD, start_powerSGD_iter=10)
    training = Training()
    training.model.register_comm_hook(state, hook)
    for _ in range(3):
        assert "which may leave out an exchange" in str(training.step())
    (sentence,) = told
    assert sentence.startswith("model has a hook with a PowerSGDState, which no checkpoint has")


def test_what_data_parallelism_does_not_know_is_not_kept_equal() -> None:
    unknown = "an optimizer has parameters of no model in DistributedDataParallel"
    assert Training(wrap=False).step() == unknown
    thawed = Training(freeze=True)
    assert thawed.step() is None
    thawed.net.requires_grad_(True)
    assert thawed.step() == unknown


def test_no_rank_offers_its_own_weights_for_all_once_training_is_local() -> None:
    training = Training()
    parts = {"model": training.net, "optimizer": training.optimizer}
    gradients = AccumulatedGradients([training.optimizer])
    steps = NotedSteps(seeded=True, world_size=2, exchange=training.exchange)

    def note(step: int) -> None:
        gradients.step_done()
        steps.look(1.0)
        steps.note(Position(step=step), {}, lambda: StepValues(step=step))
        gradients.step_begins()

    training.step()
    steps.begin(parts, 0, gradients, {"model"}, (), lambda: [0, 0])
    note(1)
    assert steps.last().noted().position.step == 1
    with training.model.no_sync():
        training.step()
    note(2)
    with pytest.raises(NotWhole, match="gradients of model that were not exchanged"):
        steps.last()


@pytest.mark.parametrize(
    ("agreed", "offered"),
    [
        pytest.param(StepValues(step=1, alike=True), True, id="all ranks hold the same"),
        pytest.param(StepValues(step=1, alike=False), False, id="or not, as far as they know"),
    ],
)
def test_a_step_is_offered_only_where_the_ranks_hold_the_same(
    agreed: StepValues, offered: bool
) -> None:
    training = Training()
    parts = {"model": training.net, "optimizer": training.optimizer}
    gradients = AccumulatedGradients([training.optimizer])
    steps = NotedSteps(seeded=True, world_size=2, exchange=training.exchange)
    training.step()
    steps.begin(parts, 0, gradients, {"model"}, (), lambda: [0, 0])
    gradients.step_done()
    steps.look(1.0)
    steps.note(Position(step=1), {}, lambda: agreed)
    if offered:
        assert steps.last().noted().position.step == 1
    else:
        with pytest.raises(NotWhole, match="states of their own"):
            steps.last().noted()
