"""How a driver ends: what the bucket and its document say then, and what the next one finds."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train import WorkerGroupError

from support.checkpoints import uploaded
from support.processes import wait_for
from support.runtime_calls import a_contract, a_report
from trainingrun_protocol.contract import (
    SAVED_FILE,
    STATE_DIRECTORY_ENV,
    STORAGE_PATIENCE_ENV,
)
from trainingrun_protocol.exit_codes import DONE_EXIT_CODE, FAILED_EXIT_CODE, SUSPEND_EXIT_CODE
from trainingrun_protocol.progress import Failure, RunState
from trainingrun_runtime.coordinator.checkpoints import Command
from trainingrun_runtime.coordinator.coordinator import Coordinator
from trainingrun_runtime.driver import attempt as attempts
from trainingrun_runtime.driver import background
from trainingrun_runtime.driver.attempt import Attempt
from trainingrun_runtime.driver.failure_policy import AttemptPolicy
from trainingrun_runtime.imports import BackgroundImports
from trainingrun_runtime.known_errors.failure_causes import Suspended
from trainingrun_runtime.progress import document
from trainingrun_runtime.progress.document import Documents
from trainingrun_runtime.ray_internals.training import FailureDecision
from trainingrun_runtime.state_directory import state_directory
from trainingrun_runtime.store import lease, manifest, run_result, verification
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease, Superseded
from trainingrun_runtime.store.storage_errors import DeniedError, StorageError
from trainingrun_runtime.worker.preemption_notice import PreemptionNotice

CONTRACT = a_contract()
SUSPENDED = WorkerGroupError("failed", {0: Suspended()})
ENDS = [pytest.param(None, id="done"), pytest.param(SUSPENDED, id="suspended")]
"""What training ends with, where it may end well."""


class Called:
    """A coordinator in this process, called as its actor is."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self.coordinator, name))


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Coordinator]]:
    """The coordinators of all attempts of a test."""
    made: list[Coordinator] = []

    def start_coordinator(*arguments: Any) -> Called:
        made.append(Coordinator(*arguments))
        return Called(made[-1])

    monkeypatch.setenv(STATE_DIRECTORY_ENV, str(tmp_path / "state"))
    monkeypatch.setattr(attempts, "start_coordinator", start_coordinator)
    monkeypatch.setattr(attempts.ray, "get", lambda answer, timeout=None: answer)
    monkeypatch.setattr(attempts.run_page, "write", lambda *_: None)
    yield made
    for coordinator in made:
        coordinator.close()


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket.open(f"file://{tmp_path}/run")


def a_driver(bucket: Bucket, pod: str, now: float) -> Attempt:
    taken = Lease.take(bucket, 1, pod, now)
    return Attempt(CONTRACT, taken, now, Documents(CONTRACT.attempt), [], BackgroundImports())


def trained(coordinator: Coordinator, step: int) -> None:
    """A worker group has done this step, and no checkpoint has it yet."""
    group = coordinator.group_started(1, 0, [])
    coordinator.stepped(a_report(group, step=step))


def state() -> RunState | None:
    """What the document says that the operator reads."""
    found = document.read(Documents(CONTRACT.attempt).path)
    return found.state if found is not None else None


def commits_when_waited_for(
    driver: Attempt, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committer is so late that an upload is committed only while somebody waits for it."""
    waiting = coordinator.uploads_waiting

    def commit() -> int:
        upload = coordinator.next_upload(0.0)
        if upload is not None:
            driver._committer._commit(upload)
        return waiting()

    monkeypatch.setattr(coordinator, "uploads_waiting", commit)


def test_a_resumed_run_has_lost_no_head(started: list[Coordinator], bucket: Bucket) -> None:
    driver = a_driver(bucket, "pod-0", 1.0)
    trained(started[0], step=10)
    assert driver._conclude(SUSPENDED) == SUSPEND_EXIT_CODE
    assert state() is RunState.SUSPENDED
    a_driver(bucket, "pod-1", 1000.0)
    assert started[1].losses(0)[1] == []


def test_success_names_the_checkpoint_of_the_last_step_and_is_in_the_bucket_before_the_document(
    started: list[Coordinator], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = a_driver(bucket, "pod-0", 1.0)
    trained(started[0], step=10)
    upload = uploaded(bucket, 10)
    started[0].uploaded(upload)
    commits_when_waited_for(driver, started[0], monkeypatch)
    create, said = Bucket.create, []

    def noted(self: Bucket, key: str, content: bytes) -> bool:
        said.append((key, state()))
        return create(self, key, content)

    monkeypatch.setattr(Bucket, "create", noted)
    assert driver._conclude(None) == DONE_EXIT_CODE
    assert [key for key, _ in said] == ["manifests/000001-000001.json", "result/000001.json"]
    assert not any(found is not None and found.final for _, found in said)
    result = run_result.read(bucket)
    assert result is not None
    assert result.checkpoint_uri == bucket.uri("checkpoints/0001-000001/step-10")
    found = document.read(Documents(CONTRACT.attempt).path)
    assert found is not None
    assert (found.state, found.result) == (RunState.SUCCEEDED, result)


@pytest.mark.parametrize("error", ENDS)
def test_a_last_checkpoint_that_cannot_be_committed_is_no_end_that_is_well(
    started: list[Coordinator],
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException | None,
) -> None:
    monkeypatch.setattr(verification, "PAUSES_S", ())
    driver = a_driver(bucket, "pod-0", 1.0)
    trained(started[0], step=10)
    upload = uploaded(bucket, 10)
    bucket.delete(["checkpoints/0001-000001/step-10/state.pt"])
    started[0].uploaded(upload)
    commits_when_waited_for(driver, started[0], monkeypatch)
    with pytest.raises(StorageError, match="the checkpoint of step 10 could not be committed"):
        driver._conclude(error)
    assert state() not in (RunState.SUCCEEDED, RunState.SUSPENDED)
    assert run_result.read(bucket) is None


@pytest.mark.parametrize("error", ENDS)
def test_a_superseded_driver_neither_says_that_it_has_ended_well_nor_writes_a_result(
    started: list[Coordinator], bucket: Bucket, error: BaseException | None
) -> None:
    driver = a_driver(bucket, "pod-0", 1.0)
    trained(started[0], step=10)
    Lease.take(bucket, 1, "pod-1", 2.0)
    with pytest.raises(Superseded):
        driver._conclude(error)
    assert state() not in (RunState.SUCCEEDED, RunState.SUSPENDED)
    assert bucket.list("result") == []


def test_an_attempt_that_the_failure_policy_ends_has_its_page_before_the_operator_reads_the_end(
    started: list[Coordinator], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator deletes the RayJob, and with it this driver, once the document is final."""
    driver = a_driver(bucket, "pod-0", 1.0)
    trained(started[0], step=10)
    error = WorkerGroupError("failed", {0: ValueError("the loss is NaN")})
    decision = AttemptPolicy(Called(started[0]), bucket, 1).make_decision(error)
    assert decision is FailureDecision.RAISE
    told = document.read(Documents(CONTRACT.attempt).path)
    assert told is not None
    assert told.failure is not None, "the head may be lost before the end"
    assert started[0].silence() is None, "no rank of it hangs any more"
    pages: list[tuple[Any, RunState | None]] = []

    def write(taken: Lease, name: str, ended: Any) -> str:
        pages.append((ended.failure, state()))
        return "file:///report.html"

    monkeypatch.setattr(attempts.run_page, "write", write)
    assert driver._conclude(error) == FAILED_EXIT_CODE
    assert pages == [(told.failure, RunState.TRAINING)]
    found = document.read(Documents(CONTRACT.attempt).path)
    assert found is not None
    assert (found.state, found.failure) == (RunState.FAILED, told.failure)
    assert found.report_uri == "file:///report.html"
    assert lease.newest_document(bucket)["history"]["ended"]


def test_a_drained_head_that_has_saved_counts_as_no_loss(
    started: list[Coordinator], bucket: Bucket
) -> None:
    driver = a_driver(bucket, "pod-0", 1.0)
    coordinator = started[0]
    trained(coordinator, step=10)
    driver._renew_lease()  # as every 10 s, with a step that no checkpoint has

    def save() -> None:
        """What the ranks do when they are asked to, and then the committer."""
        wait_for(lambda: coordinator._checkpoints.command is Command.CHECKPOINT_AND_EXIT)
        coordinator.uploaded(uploaded(bucket, 10))
        upload = coordinator.next_upload(0.0)
        assert upload is not None
        driver._committer._commit(upload)

    ranks = threading.Thread(target=save)
    ranks.start()
    driver._checkpoint_on_notice(PreemptionNotice(time.time() + 90, pre_stop=True))
    ranks.join()
    assert (state_directory() / SAVED_FILE).exists()
    assert [made.step for made in manifest.committed(bucket)] == [10]
    next_one = Lease.take(bucket, 1, "pod-1", 1000.0)
    assert next_one.history.losses == 0


def test_a_driver_that_trains_renews_its_lease(
    started: list[Coordinator], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_CHECK_S", 0.01)
    monkeypatch.setattr(background, "_RENEW_S", 0.0)
    monkeypatch.setattr(attempts.prestarted_worker, "prestart_all", lambda *_: None)
    driver = a_driver(bucket, "pod-0", 1.0)

    def train() -> None:
        trained(started[0], step=10)
        wait_for(lambda: lease.newest_document(bucket)["history"]["step"] == 10)

    monkeypatch.setattr(driver, "_train", train)
    assert driver.run() == DONE_EXIT_CODE
    assert json.loads(bucket.get("lease/000001.json") or b"")["renewed"] > 1.0


def test_a_run_does_not_succeed_without_the_checkpoint_that_its_driver_has_committed(
    started: list[Coordinator], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of a proxy, with status 200, is an empty list; so is a folder that was deleted."""
    monkeypatch.setenv(STORAGE_PATIENCE_ENV, "0")
    driver = a_driver(bucket, "pod-0", 1.0)
    trained(started[0], step=10)
    started[0].uploaded(uploaded(bucket, 10))
    commits_when_waited_for(driver, started[0], monkeypatch)
    lists = Bucket.list
    with monkeypatch.context() as patched:
        patched.setattr(
            Bucket, "list", lambda self, key: [] if key == "manifests" else lists(self, key)
        )
        with pytest.raises(StorageError, match="does not list manifests/000001-000001"):
            driver._conclude(None)
    assert run_result.read(bucket) is None
    assert state() is not RunState.SUCCEEDED
    assert driver._conclude(None) == DONE_EXIT_CODE
    result = run_result.read(bucket)
    assert result is not None
    assert result.checkpoint_uri == bucket.uri("checkpoints/0001-000001/step-10")


def test_a_run_that_succeeds_leaves_no_upload_that_a_loss_has_cut_off(
    started: list[Coordinator], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = a_driver(bucket, "pod-0", 1.0)
    trained(started[0], step=10)
    uploaded(bucket, 9, "step-0000000009-1")
    started[0].uploaded(uploaded(bucket, 10))
    commits_when_waited_for(driver, started[0], monkeypatch)
    assert driver._conclude(None) == DONE_EXIT_CODE
    assert {entry.key.split("/")[2] for entry in bucket.list("checkpoints")} == {"step-10"}


def denies_the_lease(monkeypatch: pytest.MonkeyPatch, times: float) -> list[RunState | None]:
    """The store refuses to write it so often once the driver has ended; what was said by then."""
    monkeypatch.setattr(attempts, "FAREWELL_AGAIN_S", 0.0)
    put, refused = Bucket.put, list[RunState | None]()

    def denied(self: Bucket, key: str, content: bytes) -> None:
        if key.startswith("lease/") and len(refused) < times:
            refused.append(state())
            raise DeniedError("access was denied")
        put(self, key, content)

    monkeypatch.setattr(Bucket, "put", denied)
    return refused


def test_a_driver_that_ends_while_the_store_denies_for_a_moment_is_no_lost_head(
    started: list[Coordinator], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = a_driver(bucket, "pod-0", 1.0)
    trained(started[0], step=10)
    driver._renew_lease()
    refused = denies_the_lease(monkeypatch, times=2)
    driver.fail(Failure(kind="Storage", message="access was denied"))
    assert refused == [RunState.FAILED, RunState.FAILED]
    a_driver(bucket, "pod-1", 1000.0)
    assert started[1].losses(0)[1] == []


def test_a_driver_does_not_stay_for_a_store_that_goes_on_denying(
    started: list[Coordinator], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "FAREWELL_S", 0.05)
    driver = a_driver(bucket, "pod-0", 1.0)
    trained(started[0], step=10)
    driver._renew_lease()
    refused = denies_the_lease(monkeypatch, times=float("inf"))
    driver.fail(Failure(kind="Storage", message="access was denied"))
    assert set(refused) == {RunState.FAILED}
    assert lease.newest_document(bucket)["history"]["ended"] is False
