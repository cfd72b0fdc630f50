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
from trainingrun_protocol.progress import Progress, RunState
from trainingrun_runtime.progress import document as progress_document
from trainingrun_runtime.progress.document import Documents
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease, Superseded
from trainingrun_runtime.sweep.driver import SweepDriver

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
    documents, ended = Documents(contract), threading.Event()
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
    documents = Documents(contract)
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
    documents = Documents(contract)
    begins = threading.Thread(target=SweepDriver, args=(contract, SWEEP, lease, 0.0, documents))
    begins.start()
    try:
        wait_until(lambda progress: progress.storage_error is not None, documents.path)
    finally:
        record.unlink()
        begins.join(PATIENCE_S)
    wait_until(lambda progress: progress.storage_error is None, documents.path)
