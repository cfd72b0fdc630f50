"""What Ray's controller tells: steps of code without a session, and the end of a worker group."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trainingrun_protocol.contract import ContractStorage, RunContract
from trainingrun_runtime.coordinator.coordinator import Coordinator
from trainingrun_runtime.coordinator.ranks import RankProcess
from trainingrun_runtime.driver import report_callback
from trainingrun_runtime.driver.report_callback import CoordinatorReports, ReportedSteps

STEP = [{"step": step} for step in (10, 20, 30, 40)]
NONE: list[dict[str, Any]] = [{"loss": 0.5}] * 4
EPOCH_FROM_0 = [{"epoch": epoch} for epoch in range(4)]
EPOCH_FROM_1 = [{"epoch": epoch} for epoch in range(1, 5)]
EACH_5TH_EPOCH = [{"epoch": epoch} for epoch in (5, 10, 15, 20)]
BATCHES = [{"epoch": epoch, "loss": 0.5} for epoch in (0, 0, 0, 1, 1, 1, 2, 2)]
BATCHES_FROM_1 = [{"epoch": epoch} for epoch in (1, 1, 2, 2, 3, 3)]


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    storage = ContractStorage(uri="s3://b/r")
    contract = RunContract(name="a", namespace="b", uid="0", attempt=1, storage=storage)
    made = Coordinator(contract, 3, 1000.0, tmp_path / "progress.json", None)
    yield made
    made.close()


def begin(steps: ReportedSteps, coordinator: Coordinator, resumed_step: int) -> None:
    steps.group_begins()
    coordinator.group_started(2, resumed_step, [])


@pytest.mark.parametrize(
    ("reports", "numbers"),
    [
        pytest.param(STEP, [10, 20, 30, 40], id="steps"),
        pytest.param([{"global_step": True}], [1], id="no number"),
        pytest.param(NONE, [1, 2, 3, 4], id="neither"),
        pytest.param(EPOCH_FROM_0, [1, 2, 3, 4], id="epochs from 0"),
        pytest.param(EPOCH_FROM_1, [1, 2, 3, 4], id="epochs from 1"),
        pytest.param(EACH_5TH_EPOCH, [5, 10, 15, 20], id="each 5th epoch"),
        pytest.param(BATCHES, list(range(1, 9)), id="batches of an epoch"),
        pytest.param(BATCHES_FROM_1, list(range(1, 7)), id="batches, epochs from 1"),
    ],
)
def test_every_report_has_a_step_of_its_own_and_the_same_one_after_a_loss(
    coordinator: Coordinator, reports: list[dict[str, Any]], numbers: list[int]
) -> None:
    steps = ReportedSteps(coordinator.resumed_step)
    begin(steps, coordinator, 0)
    assert [steps.of(metrics) for metrics in reports] == numbers
    for done in range(1, len(numbers)):
        begin(steps, coordinator, numbers[done - 1])
        assert [steps.of(metrics) for metrics in reports[done:]] == numbers[done:]


def test_a_step_that_is_reported_after_many_metrics_is_found(coordinator: Coordinator) -> None:
    steps = ReportedSteps(coordinator.resumed_step)
    begin(steps, coordinator, 0)
    many = {f"iou/{number}": 0.5 for number in range(2000)}
    assert steps.of({**many, "step": np.int64(4000)}) == 4000


def test_the_step_of_a_session_is_not_what_its_training_reports(coordinator: Coordinator) -> None:
    steps = ReportedSteps(coordinator.resumed_step)
    begin(steps, coordinator, 0)
    assert steps.of({"step": 7}, known=12) == 12
    assert steps.of({"loss": 0.5}) == 13, "a report of its own comes after it"


def test_a_run_whose_epochs_were_its_steps_goes_on_with_them(coordinator: Coordinator) -> None:
    """As a run does that an earlier version has begun, with epoch 5 as step 5."""
    steps = ReportedSteps(coordinator.resumed_step)
    begin(steps, coordinator, 5)
    assert [steps.of({"epoch": epoch}) for epoch in (6, 7)] == [6, 7]


def test_a_group_that_begins_from_an_older_checkpoint_counts_from_there(
    coordinator: Coordinator,
) -> None:
    steps = ReportedSteps(coordinator.resumed_step)
    begin(steps, coordinator, 0)
    assert [steps.of({"loss": 0.5}) for _ in range(7)][-1] == 7
    begin(steps, coordinator, 5)
    assert steps.of({"loss": 0.5}) == 6


def test_of_a_group_that_is_shut_down_nothing_hangs_whatever_the_script_does_next(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_callback.ray, "get", lambda answer: answer)
    shut_down = SimpleNamespace(remote=coordinator.group_shut_down)
    reports = CoordinatorReports(SimpleNamespace(group_shut_down=shut_down))

    def begin_group() -> None:
        coordinator.next_group()
        coordinator.joined(0, "r0", "node-0", "pod-0", RankProcess(b"", 1, 1.0))

    begin_group()
    coordinator.group_started(1, 0, [])
    reports.before_worker_group_shutdown(None)
    assert (coordinator.silence(), coordinator.members()) == (None, {})
    begin_group()
    assert coordinator.silence() is not None, "the next group's time counts"
    assert list(coordinator.members()) == [0]
