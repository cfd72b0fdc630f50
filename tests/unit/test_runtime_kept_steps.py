"""Of objects that return former states themselves, the last step that all ranks have finished."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from trainingrun_runtime.checkpoints.encoding import decode
from trainingrun_runtime.checkpoints.gradients import AccumulatedGradients
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.checkpoints.stateful_objects import KeptState, SmallState, restorable
from trainingrun_runtime.survivors import last_step
from trainingrun_runtime.survivors.last_step import LastStep
from trainingrun_runtime.survivors.noted_steps import GradientExchange, NotedSteps
from trainingrun_runtime.survivors.watched_tensors import NotCovered, NotWhole
from trainingrun_runtime.worker.step_consensus import UNKNOWN, StepValues

STEP_S = 1.0


class Growing(KeptState):
    """A list to which each step adds its number."""

    keeps_former = True

    def __init__(self) -> None:
        self.steps: list[int] = []

    def state_dict(self) -> Mapping[str, Any]:
        return {"steps": list(self.steps)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = list(state["steps"])

    def kept(self) -> Callable[[], Mapping[str, Any]]:
        steps, done = self.steps, len(self.steps)
        return lambda: {"steps": steps[:done]}

    def alone(self) -> Any:
        return ()


class Large(Growing):
    """One of which only the last state may be kept."""

    keeps_former = False


class Counter(SmallState):
    """A position, as that of a data loader."""

    def __init__(self) -> None:
        self.number = 0

    def state_dict(self) -> Mapping[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.number = state["number"]


def steps_of(objects: Mapping[str, Any]) -> LastStep:
    return LastStep(objects, 0, AccumulatedGradients([]))


class Training:
    def __init__(self, kind: type[Growing] = Growing) -> None:
        self.thing, self.counter = kind(), Counter()
        self.finished: dict[int, bool] = {}
        self.steps = steps_of(restorable({"thing": self.thing, "counter": self.counter}))

    def step(self, finished: bool = True) -> None:
        """One more, which all ranks have finished, or not."""
        self.half_a_step()
        self.counter.number += 1
        at = Position(step=self.counter.number)
        self.finished[at.step] = finished
        self.steps.look(STEP_S)
        self.steps.note(at, {}, lambda _: at if self.finished[at.step] else None)

    def half_a_step(self) -> None:
        self.thing.steps.append(len(self.thing.steps))

    def handed_out(self) -> dict[str, Any]:
        states = self.steps.take(self.steps.noted().position.step)
        return {name: decode(state.tree) for name, state in states.items()}


def state_after(step: int) -> dict[str, Any]:
    return {"thing": {"steps": list(range(step))}, "counter": {"number": step}}


def test_the_state_after_the_last_step_is_handed_out_in_the_middle_of_the_next_one() -> None:
    training = Training()
    training.step()
    training.step()
    training.half_a_step()
    assert training.handed_out() == state_after(2)


def test_where_a_rank_died_at_the_steps_end_it_is_the_step_before() -> None:
    training = Training()
    training.step()
    training.step(finished=False)
    assert training.handed_out() == state_after(1)


def test_what_is_saved_of_a_step_has_its_position_also_once_the_next_one_has_ended() -> None:
    """A rank dies; the survivors end what follows the last exchange, before they are asked."""
    training = Training()
    training.step()
    training.step()
    assert training.steps.noted(1).position.step == 1
    with pytest.raises(NotWhole, match="step 3 is no longer kept"):
        training.steps.noted(3)


def test_an_object_that_a_rank_may_have_changed_alone_makes_the_step_doubtful() -> None:
    class OfThisRank(Growing):
        own: Any = None

        def alone(self) -> Any:
            return self.own

    training = Training(OfThisRank)
    training.step()
    assert training.steps.look(STEP_S) == UNKNOWN
    digests = []
    for training.thing.own in (1, 1, 2):
        digests.append(training.steps.look(STEP_S))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("kind", [Growing, Large])
def test_no_more_states_are_kept_than_take_no_memory(kind: type[Growing]) -> None:
    training = Training(kind)
    for _ in range(4):
        training.step()
    training.finished[4] = False
    if kind is Large:
        with pytest.raises(NotWhole, match="another rank has not finished step 4"):
            training.steps.noted()
    else:
        assert training.handed_out() == state_after(3)
        with pytest.raises(NotWhole, match="step 2 is no longer the last one"):
            training.steps.take(2)


def test_a_state_is_made_once_for_its_digest_and_for_the_checkpoint() -> None:
    training, made = Training(), []

    class Noticed(Growing):
        def kept(self) -> Callable[[], Mapping[str, Any]]:
            def state() -> Mapping[str, Any]:
                made.append(1)
                return {}

            return state

    training.steps = steps_of({"thing": Noticed()})
    training.step()
    training.steps.fingerprint(training.steps.noted())
    training.handed_out()
    assert made == [1]


def test_ranks_with_different_states_have_different_digests() -> None:
    one, other = Training(), Training()
    for training in (one, other):
        training.step()
    assert digest(one) == digest(other)
    other.thing.steps[0] = 7
    other.step()
    one.step()
    assert digest(one) != digest(other)


def digest(training: Training) -> int:
    return training.steps.fingerprint(training.steps.noted())


def test_notes_that_take_too_long_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    training.step()
    monkeypatch.setattr(last_step, "ADVANCE_S", -1.0)
    training.step()
    with pytest.raises(NotWhole, match=r"more than 0\.3 % of the time"):
        training.steps.noted()


def begun(objects: dict[str, Any]) -> NotedSteps:
    steps = NotedSteps(seeded=True, world_size=2, exchange=GradientExchange({}))
    steps.begin(restorable(objects), 0, AccumulatedGradients([]), (), (), lambda: [0, 0])
    return steps


def test_such_an_object_needs_no_optimizer_of_pytorch() -> None:
    assert begun({"thing": Growing(), "counter": Counter()}).noting


def test_a_model_of_pytorch_beside_it_is_not_covered() -> None:
    objects = {"thing": Growing(), "model": torch.nn.Linear(1, 1)}
    with pytest.raises(NotWhole, match="model is a Linear"):
        begun(objects).last()


def test_an_object_that_cannot_return_former_states_is_not_covered() -> None:
    class Refuses(Growing):
        def kept(self) -> Callable[[], Mapping[str, Any]]:
            raise NotCovered("its trees are rescaled")

    with pytest.raises(NotWhole, match="its trees are rescaled"):
        begun({"thing": Refuses()}).last()


@pytest.mark.parametrize(
    ("driven", "saved"),
    [
        pytest.param(False, 1, id="it may have asked to stop"),
        pytest.param(True, 2, id="no rank does in the loop of a framework"),
    ],
)
def test_a_step_that_a_lost_rank_had_not_ended_counts_where_it_cannot_have_asked_to_stop(
    driven: bool, saved: int
) -> None:
    steps = begun({"thing": Growing()})
    steps.driven = driven
    steps.look(STEP_S)
    steps.note(Position(step=1), {}, StepValues)
    steps.look(STEP_S)
    steps.note(Position(step=2), {}, lambda: None)
    assert steps.last().noted().position.step == saved
