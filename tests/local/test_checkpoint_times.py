"""Checkpoints at multiples of steps, and by what they cost and how often the run is lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import ContractCheckpoints
from trainingrun_runtime.store import manifest
from trainingrun_runtime.store.lease import LossHistory

pytestmark = pytest.mark.slow

EVERY, STEPS = 20, 160
RARELY_LOST_S = 1e6


def test_checkpoints_stay_at_multiples_of_steps_and_become_more_frequent_when_the_run_is_lost(
    ray: LocalRay, tmp_path: Path
) -> None:
    config = {"steps": STEPS, "step_seconds": 0.1}
    run = Run(ray, tmp_path, "trainingrun_runtime.examples.linear:train", config)
    settings = ContractCheckpoints(
        keep=100, every_steps=EVERY, assumed_seconds_between_losses=RARELY_LOST_S
    )
    run.contract = run.contract.model_copy(update={"checkpoints": settings})

    run.start()
    run.wait_until(lambda progress: (progress.checkpoint_interval_seconds or 0) > 10)
    run.wait_until(lambda progress: history_of(run, 1).unsaved)
    run.stop()
    lost = history_of(run, 1)

    run.start()
    second = run.wait_until(
        lambda progress: (
            progress.fencing_token == 2
            and progress.checkpoint is not None
            and progress.checkpoint.step > (progress.resumed_from_step or 0)
        )
    )
    assert lease_of(run, 2)["history"]["losses"] == 1
    assert history_of(run, 2).trained >= lost.trained > 0
    assert (second.resumed_from_step or 0) % EVERY == 0
    shown = run.wait_until(lambda progress: progress.checkpoint_interval_seconds is not None)
    # With a loss within seconds, a checkpoint is worth while as often as it may be made.
    assert 10 <= (shown.checkpoint_interval_seconds or 0) < 60
    assert run.wait() == 0, run.log()
    made = [committed.step for committed in manifest.committed(run.bucket)]
    assert set(range(EVERY, STEPS + 1, EVERY)) <= set(made)


def history_of(run: Run, token: int) -> LossHistory:
    return LossHistory.model_validate(lease_of(run, token).get("history", {}))


def lease_of(run: Run, token: int) -> dict[str, Any]:
    return dict(json.loads(run.bucket.get(f"lease/{token:06d}.json") or b"{}"))
