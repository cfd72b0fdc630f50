"""The driver of a sweep tells where it stands also while the bucket does not answer."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainingrun_protocol.contract import (
    STATE_DIRECTORY_ENV,
    ContractParameter,
    ContractStorage,
    ContractSweep,
    RunContract,
)
from trainingrun_protocol.exit_codes import DONE_EXIT_CODE, FAILED_EXIT_CODE
from trainingrun_protocol.progress import (
    Failure,
    LastCheckpoint,
    Progress,
    ProgressResult,
    RunState,
    TrialState,
)
from trainingrun_runtime.progress import document as progress_document
from trainingrun_runtime.progress.document import Documents
from trainingrun_runtime.store import run_result
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease, Superseded
from trainingrun_runtime.sweep import record, search
from trainingrun_runtime.sweep.driver import SweepDriver
from trainingrun_runtime.sweep.record import Origin, Trial

PATIENCE_S = 30.0
SWEEP = ContractSweep(
    metric="loss",
    mode="min",
    samples=2,
    concurrency=2,
    perturbation_interval=20,
    space=[ContractParameter(name="lr", min=0.1, max=1.0)],
)


@pytest.fixture
def contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunContract:
    monkeypatch.setenv(STATE_DIRECTORY_ENV, str(tmp_path / "state"))
    storage = ContractStorage(uri=f"file://{tmp_path}/run")
    return RunContract(name="digits", namespace="default", uid="0", attempt=1, storage=storage)


def wait_until(holds: Callable[[Progress], bool], path: Path) -> None:
    ends = time.monotonic() + PATIENCE_S
    while (found := progress_document.read(path)) is None or not holds(found):
        assert time.monotonic() < ends, found
        time.sleep(0.05)


def test_others_are_followed_while_a_trial_waits_for_the_bucket(
    contract: RunContract, tmp_path: Path
) -> None:
    lease = Lease.take(Bucket.open(contract.storage.uri), 1, "pod", 0.0)
    documents, ended = Documents(contract.attempt), threading.Event()
    driver = SweepDriver(contract, SWEEP, lease, 0.0, documents)
    assert driver._begin_next() == "0001-01"
    (tmp_path / "run" / "sweep").rename(tmp_path / "noted")
    (tmp_path / "run" / "sweep").write_text("a file where the folder is to be")
    names: list[str | None] = []
    begins = threading.Thread(target=lambda: names.append(driver._begin_next()))
    watches = threading.Thread(target=driver._watch, args=(ended,))
    for thread in (begins, watches):
        thread.start()
    try:
        wait_until(lambda progress: progress.storage_error is not None, documents.path)
        at_step_7 = Progress(attempt=1, state=RunState.TRAINING, time=time.time(), step=7)
        progress_document.write(driver._jobs[1].document, at_step_7)
        wait_until(lambda progress: progress.step == 7, documents.path)
        assert names == []
    finally:
        (tmp_path / "run" / "sweep").unlink()
        begins.join(PATIENCE_S)
        ended.set()
        watches.join(PATIENCE_S)
    assert names == ["0002-01"]


def test_a_driver_whose_first_record_cannot_be_written_says_so(
    contract: RunContract, tmp_path: Path
) -> None:
    bucket = Bucket.open(contract.storage.uri)
    documents = Documents(contract.attempt)
    driver = SweepDriver(contract, SWEEP, Lease.take(bucket, 1, "pod", 0.0), 0.0, documents)
    (tmp_path / "run" / "sweep").write_text("a file where the folder is to be")
    ends: list[BaseException] = []

    def run() -> None:
        try:
            driver.run()
        except Superseded as error:
            ends.append(error)

    runs = threading.Thread(target=run)
    runs.start()
    try:
        wait_until(lambda progress: progress.storage_error is not None, documents.path)
    finally:
        Lease.take(bucket, 2, "another pod", 0.0)  # it ends before it trains
        runs.join(PATIENCE_S)
    assert len(ends) == 1


def test_a_driver_that_cannot_read_what_the_former_one_noted_says_so(
    contract: RunContract, tmp_path: Path
) -> None:
    lease = Lease.take(Bucket.open(contract.storage.uri), 1, "pod", 0.0)
    record = tmp_path / "run" / "sweep"
    record.symlink_to(record)  # cannot be read
    documents = Documents(contract.attempt)
    begins = threading.Thread(target=SweepDriver, args=(contract, SWEEP, lease, 0.0, documents))
    begins.start()
    try:
        wait_until(lambda progress: progress.storage_error is not None, documents.path)
    finally:
        record.unlink()
        begins.join(PATIENCE_S)
    wait_until(lambda progress: progress.storage_error is None, documents.path)


ASHA = SWEEP.model_copy(
    update={"perturbation_interval": None, "asha": True, "grace_steps": 10, "reduction_factor": 2}
)
BUG = Failure(kind="Application", message="a bug")


def a_driver(contract: RunContract, attempt: int) -> SweepDriver:
    lease = Lease.take(Bucket.open(contract.storage.uri), attempt, "pod", 0.0)
    return SweepDriver(contract, ASHA, lease, 0.0, Documents(contract.attempt))


def after_one_was_stopped(contract: RunContract, attempt: int = 1) -> SweepDriver:
    """A driver that has begun both trials, of which ASHA has stopped the second one."""
    driver = a_driver(contract, attempt)
    assert [driver._begin_next(), driver._begin_next()] == ["0001-01", "0002-01"]
    for number in (1, 2):
        driver._table.reported(number, 10, float(number))
    ends(driver, 2, RunState.SUSPENDED, step=10)
    return driver


def ends(driver: SweepDriver, number: int, state: RunState, **facts: object) -> None:
    found = Progress.model_validate({"attempt": 1, "state": state, **facts})
    progress_document.write(driver._jobs[number].document, found)


def test_a_sweep_of_which_no_trial_was_trained_to_its_end_fails(contract: RunContract) -> None:
    driver = after_one_was_stopped(contract)
    ends(driver, 1, RunState.FAILED, step=15, failure=BUG)
    assert driver._conclude() == FAILED_EXIT_CODE
    failed = progress_document.read(driver._documents.path)
    assert failed is not None
    assert (failed.state, failed.result) == (RunState.FAILED, None)
    message = "none of the 2 trials was trained to its end; trial 1: a bug"
    assert failed.failure == Failure(kind="Application", message=message, retry="Always")
    assert run_result.read(driver._lease.bucket) is None


def test_a_trial_that_was_stopped_is_not_the_result_where_the_others_end_without_a_value(
    contract: RunContract,
) -> None:
    driver = after_one_was_stopped(contract)
    ends(driver, 1, RunState.SUCCEEDED, step=60, result=ProgressResult(metrics={"loss": "NaN"}))
    assert driver._conclude() == FAILED_EXIT_CODE
    failed = progress_document.read(driver._documents.path)
    assert failed is not None
    assert failed.failure is not None
    assert failed.failure.message == (
        "none of the 1 trials that were trained to their end has a value to compare"
    )
    assert failed.failure.retry == "Never", "no trial is left that another attempt could train"
    assert run_result.read(driver._lease.bucket) is None


def test_an_image_without_the_library_is_tried_once_more_and_no_longer(
    contract: RunContract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search.util, "find_spec", lambda _: None)
    lease = Lease.take(Bucket.open(contract.storage.uri), 1, "pod", 0.0)
    sweep = ASHA.model_copy(update={"library": "Optuna"})
    driver = SweepDriver(contract, sweep, lease, 0.0, Documents(contract.attempt))
    assert driver.run() == FAILED_EXIT_CODE
    failed = progress_document.read(driver._documents.path)
    assert failed is not None
    assert failed.failure is not None
    assert "has no package optuna" in failed.failure.message
    assert failed.failure.retry == "UnlessRepeated"


def test_a_leg_that_is_over_says_nothing_of_the_one_that_begins(contract: RunContract) -> None:
    """Trial 2 goes on from trial 1, and its process ends while the next leg's begins."""
    lease = Lease.take(Bucket.open(contract.storage.uri), 1, "pod", 0.0)
    driver = SweepDriver(contract, SWEEP, lease, 0.0, Documents(contract.attempt))
    assert [driver._begin_next(), driver._begin_next()] == ["0001-01", "0002-01"]
    for number, loss in ((1, 1.0), (2, 2.0)):
        checkpoint = LastCheckpoint(uri=f"s3://a/{number}", step=20, time=5.0)
        over = {"step": 20, "paused_at_step": 20, "metrics": {"loss": loss}}
        ends(driver, number, RunState.SUSPENDED, checkpoint=checkpoint, **over)
    driver._follow()
    driver._table.reported(2, 19, 3.0)  # as Ray Tune may tell of it only now
    assert driver._table.trials[2].value == 2.0
    assert driver._begin_next() == "0001-02"
    for _ in range(2):
        driver._follow()
        trial = driver._table.trials[2]
        assert (trial.leg, trial.origin) == (2, Origin(number=1, leg=1, step=20))
        assert (trial.value, trial.metrics) == (1.0, {"loss": 1.0})
        assert trial.checkpoint_uri == "s3://a/1"
        driver._table.reported(2, 20, 2.0)
    driver._table.reported(1, 21, 0.5)
    assert driver._table.trials[1].value == 0.5
    ends(driver, 1, RunState.TRAINING, step=22, metrics={"loss": 0.4})
    driver._follow()
    assert driver._table.trials[1].metrics == {"loss": 0.4}


def test_the_next_attempt_tries_those_again_that_failed_where_none_was_trained_to_its_end(
    contract: RunContract,
) -> None:
    driver = after_one_was_stopped(contract)
    ends(driver, 1, RunState.FAILED, step=15, failure=BUG)
    assert driver._conclude() == FAILED_EXIT_CODE
    following = a_driver(contract, 2)
    assert following._table.left() == [1]
    again, stopped = following._table.trials.values()
    assert (again.state, again.value, again.message) == (TrialState.PENDING, None, "")
    assert again.reports == [(10, 1.0)], "else ASHA may stop it by those that are stopped"
    assert (stopped.state, stopped.value) == (TrialState.STOPPED, 2.0)
    assert following._begin_next() == "0001-01"
    ends(following, 1, RunState.SUCCEEDED, step=60, result=ProgressResult(metrics={"loss": 5.0}))
    assert following._conclude() == DONE_EXIT_CODE
    result = run_result.read(following._lease.bucket)
    assert result is not None
    assert result.sweep is not None
    assert (result.metrics, result.sweep.best) == ({"loss": 5.0}, 1), "though 2 had a better value"
    assert a_driver(contract, 3)._table.left() == []


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ([TrialState.FAILED], [1, 2]),
        ([TrialState.PENDING], [2]),
        ([TrialState.SUCCEEDED], []),
    ],
    ids=["all failed", "one is left", "one was trained to its end"],
)
def test_what_failed_is_tried_again_once_nothing_else_is_left(
    contract: RunContract, others: list[TrialState], left: list[int]
) -> None:
    lease = Lease.take(Bucket.open(contract.storage.uri), 1, "pod", 0.0)
    states = dict(enumerate([TrialState.FAILED, *others], start=1))
    trials = {
        number: Trial(number=number, config={"lr": 0.1}, state=state, value=1.0)
        for number, state in states.items()
    }
    record.write(lease, trials, ASHA)
    assert a_driver(contract, 2)._table.left() == left


def test_the_result_of_a_large_sweep_is_one_that_a_later_driver_can_report(
    contract: RunContract, tmp_path: Path
) -> None:
    lease = Lease.take(Bucket.open(contract.storage.uri), 1, "pod", 0.0)
    config = {f"rate_of_the_layer_group_{p:02}" * 3: 1 / (p + 7) for p in range(20)}
    trials = {
        number: Trial(number=number, config=config, state=TrialState.SUCCEEDED, value=1.0)
        for number in range(1, 201)
    }
    record.write(lease, trials, ASHA)
    driver = a_driver(contract, 2)
    assert driver._conclude() == DONE_EXIT_CODE
    result = run_result.read(driver._lease.bucket)
    assert result is not None
    later = Documents(contract.attempt, tmp_path / "later.json")
    later.succeeded(result)
    for path in (driver._documents.path, later.path):
        assert path.stat().st_size < 256 * 1024
        read = Progress.model_validate_json(path.read_bytes())
        assert read.result is not None
        assert read.result.sweep is not None
        assert len(read.result.sweep.trials) == 200
    noted = record.read(driver._lease.bucket)
    assert noted is not None
    assert all(trial.config == config for trial in noted.trials), "the bucket has all of it"
