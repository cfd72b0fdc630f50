"""What a driver does before it needs Ray: exit code, final document and bucket say the same."""

import html
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.packages import zipped
from support.s3 import S3Server, running_s3
from trainingrun_protocol.contract import (
    CONTRACT_ENV,
    PROGRESS_FILE,
    STORAGE_PATIENCE_ENV,
    ContractCode,
    ContractStorage,
    RunContract,
)
from trainingrun_protocol.exit_codes import LEASE_LOST_EXIT_CODE
from trainingrun_protocol.progress import Progress, ProgressResult, RunState
from trainingrun_runtime.progress import document as progress_document
from trainingrun_runtime.store import run_result
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket.open(f"file://{tmp_path}/run")


class Driver:
    """One driver, as a head pod starts it, without a Ray."""

    def __init__(
        self, bucket: Bucket, folder: Path, training: Mapping[str, Any] = {}, **variables: str
    ) -> None:
        self._state = folder / "state"
        contract = RunContract(
            name="digits", namespace="default", uid="0", attempt=1, function="json:loads",
            storage=ContractStorage(
                uri=bucket.root, endpoint=bucket.endpoint, region=bucket.region
            ),
        ).model_copy(update=training)  # fmt: skip
        roots = [str(ROOT / "operator"), str(ROOT / "training_images")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainingrun_runtime"],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(roots),
                "RAY_ADDRESS": "nobody",  # no address: Ray says so at once
                "TRAININGRUN_STATE_DIRECTORY": str(self._state),
                CONTRACT_ENV: contract.model_dump_json(by_alias=True),
                **variables,
            },
        )

    @property
    def progress(self) -> Progress:
        return progress_document.read(self._state / PROGRESS_FILE) or Progress(attempt=1)

    def wait_until(self, condition: Callable[[Progress], object]) -> Progress:
        deadline = time.monotonic() + DEADLINE_S
        while not condition(progress := self.progress):
            assert self._process.poll() is None
            assert time.monotonic() < deadline, progress
            time.sleep(0.05)
        return progress

    def wait(self) -> int:
        try:
            return self._process.wait(DEADLINE_S)
        finally:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def test_a_store_that_is_away_at_the_start_is_waited_for_and_the_wait_is_reported(
    s3: S3Server, tmp_path: Path
) -> None:
    with running_s3(tmp_path / "s3") as server:
        bucket = Bucket.open("s3://runs/x", server.url, "us-east-1")
        server.stop()
        # Not even a limit of 0 s ends the wait for a store that does not answer.
        driver = Driver(bucket, tmp_path, **{STORAGE_PATIENCE_ENV: "0"})
        try:
            waiting = driver.wait_until(lambda progress: progress.storage_error)
            assert waiting.state is RunState.STARTING
            assert "cannot be reached" in (waiting.storage_error or "")
            later = driver.wait_until(lambda progress: progress.time > waiting.time)
            assert later.storage_error_since == waiting.storage_error_since
            server.start()
            driver.wait_until(lambda progress: progress.storage_error is None)
        finally:
            driver.kill()


def test_refused_credentials_end_the_attempt_after_the_limit_with_a_sentence(
    s3: S3Server, tmp_path: Path
) -> None:
    bucket = Bucket.open("s3://runs/refused", s3.url, "us-east-1")
    driver = Driver(bucket, tmp_path, AWS_SECRET_ACCESS_KEY="old", **{STORAGE_PATIENCE_ENV: "2"})
    waiting = driver.wait_until(lambda progress: progress.storage_error)
    assert waiting.state is RunState.STARTING
    assert driver.wait() == 1
    assert driver.progress.state is RunState.FAILED
    assert driver.progress.failure is not None
    assert driver.progress.failure.kind == "Storage"
    assert "correct the Secret" in driver.progress.failure.message


def test_a_key_with_a_line_break_ends_the_attempt_with_a_sentence(tmp_path: Path) -> None:
    """As a Secret has it that `kubectl create secret generic --from-file` makes."""
    bucket = Bucket.open("s3://runs/x", "http://127.0.0.1:1", "us-east-1")
    driver = Driver(bucket, tmp_path, AWS_ACCESS_KEY_ID="someone\n")
    assert driver.wait() == 1
    assert driver.progress.state is RunState.FAILED
    assert driver.progress.failure is not None
    assert driver.progress.failure.kind == "Storage"
    assert "AWS_ACCESS_KEY_ID has a line break" in driver.progress.failure.message


def test_a_driver_without_ray_leaves_a_final_document(bucket: Bucket, tmp_path: Path) -> None:
    driver = Driver(bucket, tmp_path)
    assert driver.wait() == 1
    assert driver.progress.state is RunState.FAILED
    assert driver.progress.failure is not None
    assert driver.progress.failure.kind == "Infrastructure"


def test_a_run_that_is_done_is_not_trained_again(bucket: Bucket, tmp_path: Path) -> None:
    done = ProgressResult(metrics={"accuracy": 0.9}, checkpoint_uri=bucket.uri("checkpoints/60"))
    run_result.write(Lease.take(bucket, 1, "pod", 100), done)
    driver = Driver(bucket, tmp_path)
    assert driver.wait() == 0
    assert (driver.progress.state, driver.progress.result) == (RunState.SUCCEEDED, done)


def test_a_driver_of_an_earlier_attempt_ends_and_says_nothing(
    bucket: Bucket, tmp_path: Path
) -> None:
    Lease.take(bucket, 2, "pod", 100)
    driver = Driver(bucket, tmp_path)
    assert driver.wait() == LEASE_LOST_EXIT_CODE
    assert not driver.progress.state.final


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        pytest.param(
            {"code": "absent.zip"},
            r"training.code.uri s3://runs/code/absent.zip does not exist; upload",
            id="no such object",
        ),
        pytest.param(
            {"code": "train.zip"},
            r"training.code.uri s3://runs/code/train.zip has other content than when the run began",
            id="changed",
        ),
        pytest.param(
            {"requirements": ["no-such-package==3"]},
            r"training.requirements cannot be installed: .* for no-such-package==3; correct the",
            id="requirement",
        ),
    ],
)
def test_code_that_cannot_be_used_is_the_users_error(
    s3: S3Server, tmp_path: Path, training: dict[str, Any], sentence: str
) -> None:
    store = Bucket.open("s3://runs/code", s3.url, "us-east-1")
    store.put("train.zip", zipped(tmp_path / "train.zip", {"a.py": "x = 1"}).read_bytes())
    bucket = Bucket.open(f"s3://runs/{tmp_path.name}", s3.url, "us-east-1")
    bucket.put("code.json", b'{"sha256": "that of a former attempt"}')
    if "code" in training:
        code = ContractCode(uri=store.uri(training["code"]), endpoint=s3.url, region="us-east-1")
        training = {"code": code}
    driver = Driver(bucket, tmp_path, training, PIP_NO_INDEX="1")
    assert driver.wait() == 1
    failure = driver.progress.failure
    assert failure is not None
    assert failure.kind == "Application"
    assert re.search(sentence, failure.message)
    assert driver.progress.report_uri == bucket.uri("report.html")
    page = html.unescape((bucket.get("report.html") or b"").decode())
    assert failure.message in page, "a colleague without the cluster is told, too"


def test_a_bucket_with_the_code_that_does_not_answer_is_waited_for(
    s3: S3Server, bucket: Bucket, tmp_path: Path
) -> None:
    with running_s3(tmp_path / "s3") as server:
        store = Bucket.open("s3://runs/code", server.url, "us-east-1")
        store.put("train.zip", zipped(tmp_path / "train.zip", {"a.py": "x = 1"}).read_bytes())
        server.stop()
        code = ContractCode(uri=store.uri("train.zip"), endpoint=server.url, region="us-east-1")
        driver = Driver(bucket, tmp_path, {"code": code}, **{STORAGE_PATIENCE_ENV: "0"})
        try:
            waiting = driver.wait_until(lambda progress: progress.storage_error)
            assert waiting.state is RunState.STARTING
            server.start()
            driver.wait_until(lambda progress: progress.storage_error is None)
            assert driver.wait() == 1
            assert driver.progress.failure is not None
            assert driver.progress.failure.kind == "Infrastructure"  # it got as far as to Ray
        finally:
            driver.kill()
