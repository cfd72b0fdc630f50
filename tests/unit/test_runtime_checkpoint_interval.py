"""When a checkpoint is due, and what `everySeconds: auto` makes of costs and losses."""

import math

import pytest

from trainingrun_protocol.contract import ContractCheckpoints
from trainingrun_runtime.session.checkpoint_interval import (
    CheckpointInterval,
    SaveCost,
    automatic_s,
)
from trainingrun_runtime.store.lease import LossHistory

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("cost", "save", "between_losses", "seconds"),
    [
        pytest.param(1.0, 2.0, 24 * HOUR_S, math.sqrt(2 * 86400), id="Young and Daly"),
        pytest.param(4.0, 2.0, 24 * HOUR_S, 2 * math.sqrt(2 * 86400), id="four times the cost"),
        pytest.param(1.0, 2.0, 6 * HOUR_S, math.sqrt(2 * 86400) / 2, id="four times the losses"),
        pytest.param(None, 0.0, 24 * HOUR_S, 10.0, id="no checkpoint yet"),
        pytest.param(0.001, 0.1, 60.0, 10.0, id="not below ten seconds"),
        pytest.param(0.1, 8.0, 60.0, 80.0, id="uploads take a tenth of the time"),
        pytest.param(60.0, 30.0, 1000 * HOUR_S, 3600.0, id="not above an hour"),
        pytest.param(60.0, 900.0, 1000 * HOUR_S, 3600.0, id="not above an hour for any upload"),
    ],
)
def test_the_automatic_interval_loses_the_least_time(
    cost: float | None, save: float, between_losses: float, seconds: float
) -> None:
    assert automatic_s(cost, save, between_losses) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("settings", "steps", "seconds"),
    [
        pytest.param({"every_seconds": 300}, [], 300, id="seconds"),
        pytest.param({"every_steps": 3}, [3, 6, 9], math.inf, id="steps"),
        pytest.param({"every_seconds": 60, "every_steps": 4}, [4, 8], 60, id="both"),
        pytest.param({"every_steps": 1}, list(range(1, 10)), math.inf, id="each step"),
        pytest.param({"assumed_seconds_between_losses": 7200}, [], 10, id="auto"),
    ],
)
def test_a_checkpoint_is_due_by_steps_by_time_or_by_both(
    settings: dict[str, float], steps: list[int], seconds: float
) -> None:
    interval = CheckpointInterval(ContractCheckpoints.model_validate(settings), LossHistory())
    assert [step for step in range(1, 10) if interval.is_due_after(step)] == steps
    assert interval.seconds(0.5, trained=100) == seconds


def test_a_loop_ends_with_a_checkpoint_also_where_none_is_due_by_time() -> None:
    interval = CheckpointInterval(ContractCheckpoints(every_steps=1000), LossHistory())
    assert interval.at_loop_end_s(0.5, trained=100) == 10
    assert interval.at_loop_end_s(3.0, trained=100) == 30


def test_the_interval_follows_the_costs_and_the_losses() -> None:
    automatic = ContractCheckpoints(assumed_seconds_between_losses=7200)
    lost = LossHistory(losses=2, trained=1000)
    for history, between in ((LossHistory(), 7200), (lost, (1000 + 600) / 2)):
        interval = CheckpointInterval(automatic, history)
        interval.cost.saved(stall=1.5)
        assert interval.seconds(0.5, trained=600) == pytest.approx(math.sqrt(3 * between))


@pytest.mark.parametrize(
    ("steps", "cost"),
    [
        pytest.param([], 0.25, id="no step yet"),
        pytest.param([(0.1, False)] * 9, 0.25, id="no step beside the upload"),
        pytest.param([(0.3, True)] * 4 + [(0.1, False)] * 3, 0.25, id="too few steps to compare"),
        pytest.param([(0.3, True)] * 4 + [(0.1, False)] * 4, 1.05, id="slower beside the upload"),
        pytest.param([(0.3, True)] * 4 + [(0.1, False)] * 40, 1.05, id="long after it"),
        pytest.param([(0.1, True)] * 4 + [(0.2, False)] * 4, 0.25, id="never less than the stall"),
    ],
)
def test_a_checkpoint_costs_its_stall_and_the_slower_steps_beside_its_upload(
    steps: list[tuple[float, bool]], cost: float
) -> None:
    costs = SaveCost()
    assert costs.seconds is None
    costs.saved(stall=0.25)
    for seconds, uploading in steps:
        costs.stepped(seconds, uploading)
    assert costs.seconds == pytest.approx(cost)


def test_the_mean_of_the_last_three_checkpoints_counts() -> None:
    costs = SaveCost()
    for stall in (100.0, 1.0, 2.0, 6.0):
        costs.saved(stall)
    assert costs.seconds == 3.0
