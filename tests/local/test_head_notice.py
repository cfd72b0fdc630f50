"""The head's pod ends with notice, as in a drain of its node: all steps are saved before.

No periodic checkpoint is due in these runs, so only the notice makes one.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.local_runs import PATIENCE_S, ROOT, Run, wait_for_both_nodes
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import (
    PREEMPTION_NOTICE_FILE,
    SAVED_FILE,
    ContractParameter,
    ContractSweep,
)
from trainingrun_protocol.progress import Progress, RecordKind
from trainingrun_runtime.store import loss_documents, manifest
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.loss_documents import LossDocument
from trainingrun_runtime.sweep import record

PRESTOP = ROOT / "training_images" / "bin" / "trainingrun-prestop"


@pytest.fixture
def run(ray: LocalRay, tmp_path: Path) -> Iterator[Run]:
    """With a worker on each of two nodes."""
    config = {"steps": 100_000, "step_seconds": 0.1}
    function = "trainingrun_runtime.examples.linear:train"
    made = Run(ray, tmp_path, function, config, every_seconds=3600)
    yield made
    made.stop()


def drain_head(run: Run) -> None:
    """The preStop hook, the end of the head's pod, and the next one, whose folder is empty."""
    hook = {"TRAININGRUN_STATE_DIRECTORY": str(run.state), "TRAININGRUN_NOTICE_SECONDS": "120"}
    subprocess.run([str(PRESTOP)], env={**os.environ, **hook}, check=True, timeout=PATIENCE_S)
    ended = time.time()
    run.stop()
    assert (run.state / SAVED_FILE).exists(), "the hook has waited for nobody"
    deadline = float((run.state / PREEMPTION_NOTICE_FILE).read_text())
    assert ended < deadline, "the hook has waited longer than for the checkpoints"
    run.state = run.state.with_name("state of the next head")


def losses(run: Run) -> list[LossDocument]:
    """As the page of the run shows them."""
    return list(loss_documents.read(run.bucket))


def test_a_run_loses_no_step_with_a_drained_head(run: Run) -> None:
    run.start()
    seen = run.wait_until(lambda progress: progress.step >= 10)
    assert seen.checkpoint is None
    drain_head(run)
    (saved,) = manifest.committed(run.bucket)
    assert saved.step >= seen.step

    run.start()
    resumed = run.wait_until(lambda progress: progress.resumed_from_step is not None)
    assert resumed.resumed_from_step == saved.step
    run.wait_until(lambda _: any(one.lost_steps is not None for one in losses(run)))
    assert [one.lost_steps for one in losses(run)] == [0]


def restored(progress: Progress) -> set[str]:
    """What the trials say of the checkpoints that they begin from."""
    return {one.message for one in progress.records if one.kind is RecordKind.RESTORED}


@pytest.mark.slow
def test_a_sweep_loses_no_step_of_its_trials_with_a_drained_head(
    run: Run, ray: LocalRay, tmp_path: Path
) -> None:
    space = [ContractParameter(name="lr", values=[0.1, 0.01])]
    sweep = ContractSweep(metric="loss", mode="min", concurrency=2, space=space)
    run.contract = run.contract.model_copy(update={"sweep": sweep, "workers": 1})
    wait_for_both_nodes(ray, tmp_path)
    run.start()
    seen = run.wait_until(
        lambda progress: (
            progress.sweep is not None
            and [row.number for row in progress.sweep.trials if row.step >= 10] == [1, 2]
        )
    )
    assert seen.sweep is not None
    assert seen.checkpoint is None
    drain_head(run)
    steps = {}
    for row in seen.sweep.trials:
        (saved,) = manifest.committed(Bucket.open(run.bucket.uri(record.folder(row.number))))
        assert saved.step >= row.step
        steps[row.number] = saved.step

    run.start()
    resumed = run.wait_until(lambda progress: len(restored(progress)) == 2)
    assert restored(resumed) == {
        f"trial {number}: resumed from step {step}" for number, step in steps.items()
    }
