"""The state after the last finished step is handed out whole, or not at all."""

import contextlib
import gc
import itertools
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from trainingrun_runtime.checkpoints import snapshot
from trainingrun_runtime.checkpoints.encoding import decode
from trainingrun_runtime.checkpoints.gradients import AccumulatedGradients
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.checkpoints.stateful_objects import SmallState, restorable
from trainingrun_runtime.survivors import last_step as module
from trainingrun_runtime.survivors.last_step import LastStep
from trainingrun_runtime.survivors.watched_tensors import NotCovered, NotWhole
from trainingrun_runtime.worker.step_consensus import UNKNOWN

STEP_S = 1.0


class AssignsData(torch.optim.Optimizer):
    """An optimizer of one's own, which changes no version counter."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad, alpha=-group["lr"])


class Training:
    """A small model with BatchNorm that has done one step, which is noted."""

    def __init__(
        self,
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        norm: bool = True,
        rank: int = 0,
    ) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(4, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.Linear(8, 1)]
        self.model = nn.Sequential(*layers)
        make = optimizer or (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
        self.optimizer = make(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self.generator = torch.Generator().manual_seed(3)
        self.objects = restorable(
            {
                "model": self.model,
                "optimizer": self.optimizer,
                "scheduler": self.scheduler,
                "generator": self.generator,
            }
        )
        self.gradients = AccumulatedGradients([self.optimizer])
        self.step(0)
        self.last = LastStep(self.objects, rank, self.gradients, {"model"})
        self.at = Position(step=1)
        self.note()
        self.step(1)
        self.at = Position(step=2)
        self.then = self.state()
        self.note()

    def note(self, step_s: float = STEP_S, finished: bool = True) -> None:
        at = self.at
        self.gradients.step_done()
        self.alone = self.last.look(step_s)
        self.last.note(at, {"loss": 1.0}, lambda _: at if finished else None)
        self.gradients.step_begins()

    def forward(self, number: int) -> torch.Tensor:
        inputs = torch.full((4, 4), float(number)) + torch.randn(4, 4, generator=self.generator)
        return self.model(inputs).square().mean()

    def backward(self, number: int) -> None:
        self.optimizer.zero_grad()
        self.forward(number).backward()

    def step(self, number: int) -> None:
        self.backward(number)
        self.optimizer.step()
        self.scheduler.step()

    def state(self) -> dict[str, Any]:
        return deepcopy({name: dict(thing.state_dict()) for name, thing in self.objects.items()})

    def handed_out(self) -> dict[str, Any]:
        states = self.last.take(self.last.noted().position.step)
        return {name: decode(state.tree) for name, state in states.items()}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def set_rate(training: Training) -> None:
    for group in training.optimizer.param_groups:
        group["lr"] = 7.0


def test_what_is_freed_in_the_middle_of_a_step_does_not_end_it() -> None:
    """As by the garbage collector, while PyTorch iterates over what is hooked to optimizers."""
    former, armed = [Training()], []

    def free(*_: Any) -> None:
        if armed:
            former.clear()
            gc.collect()

    hooks = register_optimizer_step_pre_hook(free), register_optimizer_step_post_hook(free)
    training = Training()
    armed.append(True)
    try:
        training.step(2)
    finally:
        for hook in hooks:
            hook.remove()
    assert former == []


@pytest.mark.parametrize(
    "broken_step",
    [
        pytest.param(lambda t: None, id="nothing yet"),
        pytest.param(lambda t: t.model.cpu(), id="the model is moved to where it is"),
        pytest.param(lambda t: t.forward(2), id="forward pass, which moves BatchNorm's means"),
        pytest.param(lambda t: t.backward(2), id="backward pass"),
        pytest.param(lambda t: t.scheduler.step(), id="scheduler stepped"),
        pytest.param(set_rate, id="learning rate set"),
    ],
)
def test_a_step_that_broke_before_the_optimizer_leaves_the_former_one_whole(
    broken_step: Callable[[Training], object],
) -> None:
    training = Training()
    broken_step(training)
    assert same(training.handed_out(), training.then)


SGD: Any = torch.optim.SGD


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(lambda p: SGD(p, 0.1, momentum=0.9, foreach=False), id="SGD"),
        pytest.param(lambda p: SGD(p, 0.1, momentum=0.9, foreach=True), id="SGD foreach"),
        pytest.param(lambda p: SGD(p, 0.1, momentum=0.9, fused=True), id="SGD fused"),
        pytest.param(lambda p: torch.optim.AdamW(p, foreach=True), id="AdamW foreach"),
        pytest.param(lambda p: torch.optim.AdamW(p, fused=True), id="AdamW fused"),
        pytest.param(AssignsData, id="own one, by .data"),
    ],
)
def test_a_step_in_which_an_optimizer_has_begun_leaves_nothing(
    optimizer: Callable[[Any], torch.optim.Optimizer],
) -> None:
    training = Training(optimizer)
    assert same(training.handed_out(), training.then)
    training.backward(2)
    training.optimizer.step()
    with pytest.raises(NotWhole, match="an optimizer has begun the next step"):
        training.handed_out()


def _named(parameters: Any) -> torch.optim.Optimizer:
    """As of `model.named_parameters()`."""
    named = [(f"layer.{number}", parameter) for number, parameter in enumerate(parameters)]
    return SGD(named, 0.1, momentum=0.9)


def _with(**settings: Any) -> Callable[[Any], torch.optim.Optimizer]:
    """An optimizer whose group has further settings."""
    return lambda p: SGD([{"params": list(p), **settings}], 0.1, momentum=0.9)


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(_named, id="parameters with names"),
        pytest.param(_with(layers=["a", ("b", 1)]), id="a list"),
        pytest.param(_with(own={"warm_up": {"steps": 3}}), id="a dict"),
        pytest.param(_with(kept_as=torch.float32), id="a dtype"),
    ],
)
def test_settings_of_every_kind_are_handed_out_as_they_were(
    optimizer: Callable[[Any], torch.optim.Optimizer],
) -> None:
    training = Training(optimizer)
    assert training.alone != UNKNOWN
    found = training.handed_out()
    assert same(found, training.then)
    kinds = [type(value) for value in found["optimizer"]["param_groups"][0].values()]
    then = training.then["optimizer"]["param_groups"][0].values()
    assert kinds == [type(value) for value in then]


def test_a_list_that_the_next_step_changes_is_handed_out_as_it_was() -> None:
    training = Training(_with(seen=[1, 2]))
    training.optimizer.param_groups[0]["seen"].append(3)
    assert training.handed_out()["optimizer"]["param_groups"][0]["seen"] == [1, 2]


def test_a_list_of_a_rank_alone_shows_in_the_digest_of_the_step() -> None:
    digests = {Training(_with(seen=seen)).alone for seen in ([1, 2], [1, 3], [1, 2])}
    assert len(digests) == 2


def test_a_list_with_tensors_is_of_no_known_step() -> None:
    training = Training(_with(kept=[torch.zeros(1)]))
    with pytest.raises(NotWhole, match="optimizer: kept is a list"):
        training.handed_out()


def _assign(training: Training) -> None:
    for parameter in training.model.parameters():
        parameter.data += 1e-3


def _replace_data(training: Training) -> None:
    training.model[0].weight.data = torch.zeros(8, 4)


def _clip(training: Training) -> None:
    with torch.no_grad():
        training.model[0].weight.clamp_(-1e-3, 1e-3)


def _momentum(training: Training) -> None:
    next(iter(training.optimizer.state.values()))["momentum_buffer"].zero_()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_assign, id="by .data"),
        pytest.param(_replace_data, id="another tensor as .data"),
        pytest.param(_clip, id="one weight, in place"),
        pytest.param(_momentum, id="momentum"),
    ],
)
def test_what_is_changed_without_an_optimizer_leaves_nothing(
    change: Callable[[Training], None],
) -> None:
    training = Training()
    change(training)
    with pytest.raises(NotWhole, match="changed"):
        training.handed_out()


def test_a_tensor_that_was_replaced_is_not_taken_for_the_former_one() -> None:
    training = Training()
    training.model[1].running_mean = torch.ones(8)
    with pytest.raises(NotWhole, match=r"model: 1\.running_mean was replaced"):
        training.handed_out()


def test_a_number_that_is_none_counts_as_no_change() -> None:
    training = Training(norm=False)
    training.step(2)
    with torch.no_grad():
        next(training.model.parameters())[0, 0] = float("nan")
    training.note()
    assert "model" in training.last.take(training.at.step)


class WithTable(Training):
    """Has an embedding, of which no few elements show a change of a row."""

    def __init__(self) -> None:
        super().__init__(norm=False)
        self.table = nn.Embedding(5_000, 16)
        self.average = torch.optim.Adam(self.table.parameters())
        self.train_table()
        more = {"table": self.table, "average": self.average}
        self.gradients = AccumulatedGradients([self.optimizer, self.average])
        self.last = LastStep({**self.objects, **more}, 0, self.gradients)
        self.both()

    def both(self) -> None:
        """A step of both optimizers, which is noted."""
        self.step(2)
        self.train_table()
        self.note()

    def train_table(self) -> None:
        self.average.zero_grad()
        self.table(torch.arange(5_000)).square().mean().backward()
        self.average.step()

    @property
    def moment(self) -> torch.Tensor:
        found: torch.Tensor = self.average.state[self.table.weight]["exp_avg"]
        return found


ALIASES = [
    pytest.param(lambda t: t.table.weight.data, id=".data"),
    pytest.param(lambda t: t.table.weight.detach().numpy(), id="NumPy"),
    pytest.param(lambda t: torch.from_dlpack(t.table.weight.detach()), id="DLPack"),
    pytest.param(lambda t: t.table.weight.data.view(-1), id="flat"),
    pytest.param(lambda t: t.table.state_dict()["weight"].data, id=".data of the state"),
    pytest.param(lambda t: t.moment.data, id="optimizer's state by .data"),
    pytest.param(lambda t: t.moment.numpy(), id="optimizer's state by NumPy"),
]


@pytest.mark.parametrize("make_alias", ALIASES)
def test_while_an_alias_is_there_the_memory_counts_as_changed(
    make_alias: Callable[[WithTable], Any],
) -> None:
    training = WithTable()
    training.last.take(training.last.noted().position.step)
    alias = make_alias(training)
    alias[7] += 1
    with pytest.raises(NotWhole, match="has an alias"):
        training.last.noted()
    with pytest.raises(NotWhole, match="has an alias"):
        training.last.take(training.at.step)


def test_what_a_save_has_of_the_state_is_no_alias_and_any_other_reference_is() -> None:
    training = WithTable()
    states = snapshot.encoded(training.objects, training.objects)
    with pytest.raises(NotWhole, match="has an alias"):
        training.last.noted()
    training.last.add_readers(states)
    assert training.last.noted().position == training.at
    alias = training.table.weight.detach()
    with pytest.raises(NotWhole, match="has an alias"):
        training.last.noted()
    del alias, states


@pytest.mark.parametrize(
    "make_alias",
    [
        *ALIASES,
        pytest.param(lambda t: np.from_dlpack(t.table.weight.detach()), id="DLPack, to NumPy"),
    ],
)
def test_a_step_at_whose_end_there_is_an_alias_leaves_nothing(
    make_alias: Callable[[WithTable], Any],
) -> None:
    training = WithTable()
    alias = make_alias(training)
    training.both()
    alias[7] += 1
    with pytest.raises(NotWhole, match="has an alias"):
        training.last.noted()
    del alias
    training.both()
    assert training.last.noted().position == training.at


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda t: t.table.weight.detach()[7].add_(1), id="a row of a view"),
        pytest.param(lambda t: t.table.state_dict()["weight"][7].zero_(), id="of the state"),
        pytest.param(lambda t: t.table.state_dict()["weight"].data.zero_(), id="swapped in"),
        pytest.param(lambda t: t.moment[7].add_(1), id="optimizer's state"),
        pytest.param(lambda t: t.table.weight.untyped_storage().fill_(0), id="all bytes"),
    ],
)
def test_a_write_whose_alias_is_gone_again_leaves_nothing(
    change: Callable[[WithTable], Any],
) -> None:
    training = WithTable()
    change(training)
    with pytest.raises(NotWhole, match="changed"):
        training.last.noted()


def test_what_autograd_keeps_for_the_backward_pass_is_no_alias() -> None:
    training = Training(norm=False)
    loss = training.forward(2)
    assert training.last._watched._current_users() != training.last._watched._users
    assert same(training.handed_out()["model"], training.then["model"])
    loss.backward()


def test_code_that_replaces_the_memory_of_parameters_leaves_nothing_from_then_on() -> None:
    """As an attack does that swaps the former values in again, and the next step's is not seen."""
    training = WithTable()
    training.table.weight.data = torch.zeros(5_000, 16)
    with pytest.raises(NotWhole, match="changed"):
        training.last.noted()
    with pytest.raises(NotCovered, match="replaces the memory"):
        training.both()


def test_what_is_taken_out_of_an_optimizers_state_is_missed() -> None:
    training = Training()
    training.optimizer.state.clear()
    with pytest.raises(NotWhole, match="optimizer has less in its state than after the step"):
        training.handed_out()


def test_a_step_that_not_every_rank_has_finished_is_not_offered() -> None:
    """A rank that died in it may have asked to stop."""
    training = Training()
    training.step(2)
    training.note(finished=False)
    with pytest.raises(NotWhole, match="another rank has not finished step 2"):
        training.last.noted()


def test_a_request_to_stop_is_part_of_the_position() -> None:
    training = Training()
    training.step(2)
    stopping = replace(training.at, stop_at=3)
    training.last.look(STEP_S)
    training.last.note(training.at, {}, lambda _: stopping)
    assert training.last.noted().position == stopping


def test_training_that_goes_on_meanwhile_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    copied = module.sharded_state.copied

    def slowly(state: Any) -> Any:
        copy = copied(state)
        if isinstance(copy, dict) and "param_groups" in copy:  # after the model's state was copied
            training.step(2)
            training.at = Position(step=3)
            training.note()
        return copy

    monkeypatch.setattr(module.sharded_state, "copied", slowly)
    with pytest.raises(NotWhole, match="step 2 is no longer the last one"):
        training.handed_out()
    monkeypatch.setattr(module.sharded_state, "copied", copied)
    training.step(3)
    training.note()
    assert same(training.handed_out(), training.state())


def test_while_gradients_are_accumulated_the_state_before_them_is_whole() -> None:
    """A run that begins there computes them again."""
    training = Training()
    before, training.at = training.at, Position(step=3)
    training.backward(2)
    training.note()
    training.forward(3).backward()
    assert training.last.noted().position == before
    assert same(training.handed_out(), training.then)
    training.optimizer.step()
    training.scheduler.step()
    with pytest.raises(NotWhole, match="an optimizer has begun the next step"):
        training.handed_out()
    training.at = Position(step=4)
    training.note()
    assert training.last.noted().position == training.at
    assert same(training.handed_out(), training.state())


class TwoRates(Training):
    """Has another model, whose optimizer begins a step in every second step alone."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.other = nn.Linear(4, 1)
        self.slow = torch.optim.SGD(self.other.parameters(), lr=0.1)
        super().__init__(norm=False)

    def both(self, number: int) -> None:
        self.step(number)
        self.slow.zero_grad()
        self.other(torch.ones(1, 4)).sum().backward()
        self.slow.step()


def test_gradients_that_an_optimizer_has_used_do_not_count() -> None:
    """They are left until its next step."""
    training = TwoRates()
    objects = {**training.objects, "other": training.other, "slow": training.slow}
    training.gradients = AccumulatedGradients([training.optimizer, training.slow])
    training.last = LastStep(objects, 0, training.gradients)
    for number in (2, 4):
        training.both(number)
        training.at = Position(step=number)
        training.note()
        assert training.last.noted().position == training.at
        training.step(number + 1)
        training.at = Position(step=number + 1)
        training.note()
    # It is known of the second time only that this optimizer begins a step now and then.
    assert training.last.noted().position == training.at
    training.other(torch.ones(1, 4)).sum().backward()
    training.step(6)
    training.note()
    with pytest.raises(NotWhole, match="gradients are accumulated"):
        training.last.noted()


def test_the_scale_of_gradients_is_that_of_the_steps_end() -> None:
    training = Training(norm=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    training.last = LastStep({**training.objects, "scaler": scaler}, 0, training.gradients)
    for number in (2, 3):
        training.optimizer.zero_grad()
        scaler.scale(training.forward(number)).backward()
        scaler.step(training.optimizer)
        scaler.update()
    then = dict(scaler.state_dict())
    assert then["scale"] == 16.0
    training.note()
    scaler.update(2.0)
    assert training.handed_out()["scaler"] == then
    restored = torch.amp.GradScaler("cpu")
    restored.load_state_dict(training.handed_out()["scaler"])
    assert dict(restored.state_dict()) == then


def test_a_scaler_that_is_turned_off_keeps_no_step_from_being_noted() -> None:
    training = Training(norm=False)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    training.last = LastStep({**training.objects, "scaler": scaler}, 0, training.gradients)
    training.step(2)
    training.note()
    assert training.handed_out()["scaler"] == {}


class Counts(SmallState):
    """Something of a framework that counts, and says so in a new dict each time."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": {"batches": self.done}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.done = state["done"]["batches"]


def test_what_a_framework_counts_is_that_of_the_steps_end() -> None:
    training, counts = Training(norm=False), Counts()
    training.last = LastStep({**training.objects, "counts": counts}, 0, training.gradients)
    counts.done = 7
    training.step(2)
    training.note()
    counts.done = 8
    assert training.handed_out()["counts"] == {"done": {"batches": 7}}


def test_a_model_that_is_no_copy_of_rank_0s_is_whole_on_every_rank() -> None:
    """As an average of the weights, which every rank computes alike."""
    training = Training(norm=False, rank=1)
    average = torch.optim.swa_utils.AveragedModel(training.model)
    training.last = LastStep(
        {**training.objects, "average": average}, 1, training.gradients, {"model"}
    )
    training.step(2)
    average.update_parameters(training.model)
    training.note()
    then, one = deepcopy(average.state_dict()), digest(training)
    assert then["n_averaged"] == 1
    assert same(training.handed_out()["average"], dict(then))
    average.n_averaged += 1
    training.optimizer.zero_grad()
    training.note()
    assert digest(training) != one, "ranks that do not have the same one are noticed"
    with torch.no_grad():
        average.module[0].weight.add_(1)
    with pytest.raises(NotWhole, match="changed"):
        training.handed_out()


def test_rank_0s_buffers_count_so_another_rank_offers_only_what_has_none_that_change() -> None:
    with pytest.raises(NotWhole, match="rank 0's count"):
        Training(rank=1).handed_out()
    training = Training(norm=False, rank=1)
    assert same(training.handed_out(), training.then)


def test_whether_training_changes_buffers_is_not_known_after_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are compared with what they were at its end."""
    handed_out = []

    def note(training: Training) -> None:
        note_of_class(training)
        with contextlib.suppress(NotWhole):
            handed_out.append(training.last.take(training.at.step))

    note_of_class = Training.note
    monkeypatch.setattr(Training, "note", note)
    Training(rank=1)
    assert handed_out == []
    Training(rank=0), Training(norm=False, rank=1)
    assert len(handed_out) == 4


class Notes:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"calls": 1}


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        pytest.param({"notes": Notes()}, "notes is a Notes", id="own class"),
        pytest.param({"model": Extra(1, 1)}, "model has _extra_state", id="extra state"),
        pytest.param({"model": nn.Linear(1, 1)}, "no optimizer", id="no optimizer"),
        pytest.param(
            {"plateau": ReduceLROnPlateau(SGD([nn.Parameter(torch.zeros(1))]))},
            "plateau follows a metric",
            id="a scheduler that follows a metric",
        ),
    ],
)
def test_what_may_change_without_notice_is_not_covered(
    objects: dict[str, Any], reason: str
) -> None:
    if "optimizer" not in reason:
        objects = {"optimizer": SGD([nn.Parameter(torch.zeros(1))]), **objects}
    with pytest.raises(NotCovered, match=reason):
        LastStep(restorable(objects), 0, AccumulatedGradients([]))


def digest(training: Training) -> int:
    return training.last.fingerprint(training.last.noted())


@pytest.mark.parametrize(
    "diverge",
    [
        pytest.param(lambda t: torch.rand(1, generator=t.generator), id="another random number"),
        pytest.param(set_rate, id="another learning rate"),
        pytest.param(lambda t: nn.init.ones_(t.model[-1].weight), id="weights of its own"),
    ],
)
def test_ranks_that_hold_different_states_have_different_digests(
    diverge: Callable[[Training], Any],
) -> None:
    one = digest(Training())
    other = Training()
    assert digest(other) == one
    other.optimizer.zero_grad()
    diverge(other)
    other.note()
    assert digest(other) != one


def test_a_step_that_the_gpu_has_not_finished_is_not_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fake event: there is no GPU whose collective could hang."""

    class Event:
        over = False

        def query(self) -> bool:
            return self.over

    monkeypatch.setattr(module, "GPU_S", 0.05)
    training, event = Training(), Event()
    (noted,) = training.last._noted
    training.last._noted = (noted._replace(event=event),)
    with pytest.raises(NotWhole, match="the GPU has not finished step 2"):
        training.last.noted()
    event.over = True
    assert module._is_over(event)


def test_steps_are_noted_only_as_long_as_it_takes_a_small_share_of_their_time() -> None:
    training = Training()
    training.optimizer.zero_grad()
    for _ in range(5_000):
        training.note(step_s=0.0)
    with pytest.raises(NotWhole, match=r"more than 0\.3 % of the time"):
        training.last.noted()
    training.note(step_s=1000.0)
    assert training.last.noted().position == training.at


def test_the_ranks_decide_together_whether_a_step_is_left_out() -> None:
    training = Training()
    training.step(2)
    assert training.last.look(STEP_S, left_out=True) == UNKNOWN
    with pytest.raises(NotWhole, match=r"more than 0\.3 % of the time"):
        training.last.noted()
    training.optimizer.zero_grad()
    for _ in range(5_000):
        training.note(step_s=0.0)
    assert training.last.no_time
    assert training.last.look(0.0, left_out=False) != UNKNOWN
    assert training.last.look(0.0) == UNKNOWN


def test_what_the_first_note_takes_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA loads kernels in it, for seconds of a step of 10 ms: no further step would be noted."""
    times = itertools.chain([0.0, 60.0], itertools.repeat(60.0))
    monkeypatch.setattr(module.time, "thread_time", lambda: next(times))
    training = Training()
    assert training.last.noted().position == training.at


def test_an_optimizer_that_is_given_a_closure_changes_nothing_before_it_returns() -> None:
    """Lightning computes the gradients there, so that is where a survivor waits."""
    training = Training(norm=False)
    taken: list[Mapping[str, Any]] = []

    def closure() -> float:
        training.backward(2)
        taken.append(training.last.take(training.at.step))
        return 0.0

    training.optimizer.step(closure)
    assert list(taken[0]) == list(training.objects)
    with pytest.raises(NotWhole, match="an optimizer has begun the next step"):
        training.last.take(training.at.step)
    training.step(3)
    training.note()
    training.optimizer.step(closure=closure)
    assert len(taken) == 2


class Bank(nn.Module):  # type: ignore[misc]
    """What a rank may fill for itself: a frozen parameter, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.zeros(5_000, 4), requires_grad=False)
        self.register_buffer("rows", torch.zeros(5_000, 4))


class Counting(torch.optim.SGD):
    """Keeps a Python number in its state, beside what SGD has."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("largest", 0.0)


class WithBank(Training):
    """Has a bank that no gradient changes, and a layer whose optimizer the session has not."""

    def __init__(self) -> None:
        super().__init__(lambda p: Counting(p, lr=0.1, momentum=0.9), norm=False)
        self.bank, self.layer = Bank(), nn.Linear(2, 2)
        self.foreign = torch.optim.Adam(self.layer.parameters())
        more = {"bank": self.bank, "layer": self.layer}
        self.last = LastStep({**self.objects, **more}, 0, self.gradients, {"model"})
        self.step(2)
        self.note()

    @property
    def state_of_first(self) -> dict[str, Any]:
        found: dict[str, Any] = self.optimizer.state[next(self.model.parameters())]
        return found

    def step_of_foreign(self) -> None:
        self.layer(torch.ones(2)).sum().backward()
        self.foreign.step()


def fill(row: torch.Tensor) -> None:
    with torch.no_grad():
        row.fill_(1)


ALONE = [
    pytest.param(lambda t: fill(t.bank.frozen[77]), id="a row of a frozen parameter"),
    pytest.param(lambda t: fill(t.bank.rows[77]), id="a row of a buffer that nobody broadcasts"),
    pytest.param(lambda t: t.bank.rows.data[77].fill_(1), id="the same by .data"),
    pytest.param(WithBank.step_of_foreign, id="an optimizer that the session has not"),
    pytest.param(lambda t: t.state_of_first.update(largest=1.0), id="a Python number"),
    pytest.param(
        lambda t: t.state_of_first["momentum_buffer"].data.fill_(1), id="optimizer's state by .data"
    ),
    pytest.param(lambda t: fill(next(t.model.parameters())[3, 2]), id="a weight, by no optimizer"),
    pytest.param(lambda t: next(t.model.parameters()).data.fill_(1), id="weights by .data"),
    pytest.param(set_rate, id="the learning rate"),
    pytest.param(lambda t: t.scheduler.step(), id="the scheduler"),
    pytest.param(lambda t: torch.rand(1, generator=t.generator), id="a random number"),
]


@pytest.mark.parametrize("change", ALONE)
def test_what_a_rank_changes_alone_in_a_step_makes_it_differ_from_the_others(
    change: Callable[[WithBank], object],
) -> None:
    alone, others = WithBank(), WithBank()
    for step in (2, 3, 4):
        for training in (alone, others):
            training.step(step)
            if step == 3 and training is alone:
                change(training)
            training.note()
        assert alone.alone != UNKNOWN
        assert (alone.alone == others.alone) is (step == 2)


def test_ranks_that_change_alike_what_no_gradient_changes_are_alike() -> None:
    """Such as an average of the weights."""
    one, other = WithBank(), WithBank()
    for step in (2, 3):
        for training in (other, one):
            training.step(step)
            fill(training.bank.frozen[77 + step])
            training.note()
        assert one.alone == other.alone != UNKNOWN
    assert one.last.noted().doubtful


def test_a_python_number_that_changes_after_the_step_leaves_nothing() -> None:
    training = WithBank()
    training.last.take(training.last.noted().position.step)
    training.state_of_first["largest"] = 1.0
    with pytest.raises(NotWhole, match="changed"):
        training.last.noted()
