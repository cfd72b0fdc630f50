"""Processes that are stopped and not ended are lost, and it is nobody's error: with real Ray."""

import os
import signal
from pathlib import Path

import pytest

from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.progress import RecordKind

pytestmark = pytest.mark.slow


def test_a_run_whose_processes_are_all_stopped_goes_on_within_the_attempt(
    ray: LocalRay, tmp_path: Path
) -> None:
    config = {"steps": 150, "step_seconds": 0.1}
    function = "trainingrun_runtime.examples.linear:train"
    run = Run(ray, tmp_path, function, config, every_seconds=1)
    run.start(RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S="5")
    run.wait_until(lambda progress: progress.checkpoint is not None)
    for process in run.training_processes():
        os.kill(process, signal.SIGSTOP)
    assert run.wait() == 0, run.log()
    progress = run.progress()
    assert progress.failure is None
    lost = [one for one in progress.records if one.kind is RecordKind.WORKER_LOST]
    assert "does not answer: A worker health check has been hanging" in lost[0].message
