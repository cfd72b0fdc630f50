"""A curve in TensorBoard goes on after each interruption: on a real Ray, by the real driver."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from support.event_files import curves, shown
from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay, Node
from trainingrun_protocol.contract import (
    PREEMPTION_NOTICE_FILE,
    SAVED_FILE,
    WATCHERS_FOLDER,
    ContractTracking,
)
from trainingrun_protocol.exit_codes import SUSPEND_EXIT_CODE
from trainingrun_runtime.tracking.event_files import FOLDER

pytestmark = pytest.mark.slow


def a_run(ray: LocalRay, folder: Path, every_s: float, **config: Any) -> Run:
    for node in ray.workers:  # of the test before; a pod of a cluster has one run
        shutil.rmtree(node.state / FOLDER, ignore_errors=True)
    run = Run(ray, folder, "trainingrun_runtime.examples.curve:train", config)
    tracking = ContractTracking(tensorboard_every_seconds=every_s)
    run.contract = run.contract.model_copy(update={"tracking": tracking})
    return run


def test_a_run_that_was_suspended_and_killed_has_one_curve_with_each_step_once(
    ray: LocalRay, tmp_path: Path
) -> None:
    run = a_run(ray, tmp_path, 0.2, steps=120, step_seconds=0.1)
    assert run.drive(suspend_at=10) == SUSPEND_EXIT_CODE, run.log()
    (suspended,) = curves(run.bucket)
    assert suspended.steps == list(range(run.progress().step))

    run.contract = run.contract.model_copy(update={"attempt": 2})
    run.start()
    begun = len(suspended.steps) + 10
    run.wait_until(lambda progress: progress.attempt == 2 and progress.step >= begun)
    os.kill(run.training_process(), signal.SIGKILL)
    assert run.wait() == 0, run.log()
    found = curves(run.bucket)
    assert len(found) == 3
    assert found[1].first_step == len(suspended.steps)
    steps, restored = shown(found), found[2].first_step
    assert steps == sorted(set(steps))
    # What a killed process wrote since its last upload may be on a node without rank 0.
    missing = set(range(120)) - set(steps)
    assert restored is not None
    assert all(restored - 10 <= step < restored for step in missing)


def last_event(node: Node) -> float:
    return max((file.stat().st_mtime for file in (node.state / FOLDER).glob("*")), default=0.0)


def test_a_node_with_notice_is_watched_until_its_events_are_uploaded(
    ray: LocalRay, tmp_path: Path
) -> None:
    """The preStop hook waits for the watchers. No other upload is due before the end."""
    run = a_run(ray, tmp_path, 600, steps=60, step_seconds=0.1)
    run.start()
    run.wait_until(lambda progress: progress.step >= 10)
    node = max(ray.workers, key=last_event)  # of rank 0
    (node.state / PREEMPTION_NOTICE_FILE).write_text(str(time.time() + 120))
    run.wait_until(lambda _: not any((node.state / WATCHERS_FOLDER).iterdir()))
    (uploaded,) = curves(run.bucket)
    assert not (node.state / SAVED_FILE).exists()
    node.process.terminate()
    ray.add_worker()
    assert run.wait() == 0, run.log()
    ray.remove(node)
    found = curves(run.bucket)
    assert found[0] == uploaded
    assert found[1].first_step == len(uploaded.steps)
    assert shown(found) == list(range(60))
