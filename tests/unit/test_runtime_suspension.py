"""How a driver ends that is suspended: what the next one finds of it."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train import WorkerGroupError

from support.runtime_calls import a_contract, a_report
from trainingrun_protocol.contract import STATE_DIRECTORY_ENV
from trainingrun_protocol.exit_codes import SUSPEND_EXIT_CODE
from trainingrun_protocol.progress import RunState
from trainingrun_runtime.coordinator.coordinator import Coordinator
from trainingrun_runtime.driver import attempt as attempts
from trainingrun_runtime.driver.attempt import Attempt
from trainingrun_runtime.imports import BackgroundImports
from trainingrun_runtime.known_errors.failure_causes import Suspended
from trainingrun_runtime.progress import document
from trainingrun_runtime.progress.document import Documents
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease

CONTRACT = a_contract()
SUSPENDED = WorkerGroupError("failed", {0: Suspended()})


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


def test_a_resumed_run_has_lost_no_head(started: list[Coordinator], tmp_path: Path) -> None:
    bucket = Bucket.open(f"file://{tmp_path}/run")

    def a_driver(pod: str, now: float) -> Attempt:
        lease = Lease.take(bucket, 1, pod, now)
        return Attempt(CONTRACT, lease, now, Documents(CONTRACT), [], BackgroundImports())

    driver = a_driver("pod-0", 1.0)
    group = started[0].group_started(2, 0, [])
    started[0].stepped(a_report(group, step=10))
    assert driver._conclude(SUSPENDED) == SUSPEND_EXIT_CODE
    written = document.read(Documents(CONTRACT).path)
    assert written is not None
    assert written.state is RunState.SUSPENDED
    a_driver("pod-1", 1000.0)
    assert started[1].losses(0)[1] == []
