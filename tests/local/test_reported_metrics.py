"""The table of a run that is killed and suspended has each step once: on a real Ray."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.local_runs import Run
from support.many_metrics import CLASSES
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.exit_codes import SUSPEND_EXIT_CODE
from trainingrun_protocol.progress import RecordKind
from trainingrun_runtime.store import manifest, metrics_table, retention, run_result
from trainingrun_runtime.store.bucket import Bucket

pytestmark = pytest.mark.slow


def table(bucket: Bucket) -> list[dict[str, Any]]:
    return list(metrics_table.read(bucket).to_pylist())


def test_a_run_that_was_suspended_and_killed_has_each_step_once(
    ray: LocalRay, tmp_path: Path, bucket: Bucket
) -> None:
    function = "trainingrun_runtime.examples.linear:train"
    config = {"steps": 120, "step_seconds": 0.05}
    run = Run(ray, tmp_path, function, config, bucket, every_seconds=1)
    assert run.drive(suspend_at=10) == SUSPEND_EXIT_CODE, run.log()
    suspended = table(run.bucket)
    assert [row["step"] for row in suspended] == list(range(1, run.progress().step + 1))

    run.contract = run.contract.model_copy(update={"attempt": 2})
    run.start()
    begun = len(suspended)
    run.wait_until(lambda progress: progress.attempt == 2 and progress.step >= begun + 40)
    os.kill(run.training_process(), signal.SIGKILL)
    assert run.wait() == 0, run.log()
    found = table(run.bucket)
    assert [row["step"] for row in found] == list(range(1, 121))
    assert found[:begun] == suspended
    assert {row["attempt"] for row in found[begun:]} == {2}
    times = [row["time"] for row in found]
    assert times == sorted(times), "no row is of a step that was done again"


def test_no_row_is_missing_where_another_rank_saves_the_last_step_of_rank_0(
    ray: LocalRay, tmp_path: Path
) -> None:
    config = {"folder": str(tmp_path), "seed": 5, "norm": False, "signals": {"0": "SIGKILL"}}
    run = Run(ray, tmp_path, "support.dies_in_a_step:train", config)
    assert run.drive() == 0, run.log()
    assert "which rank 1 saved" in str([record.message for record in run.progress().records])
    found = table(run.bucket)
    assert [row["step"] for row in found] == list(range(1, 21))
    assert all(isinstance(row["loss"], float) for row in found)


def test_a_run_that_reports_many_metrics_loses_neither_a_step_nor_a_metric(
    ray: LocalRay, tmp_path: Path
) -> None:
    run = Run(ray, tmp_path, "support.many_metrics:train", {"step_seconds": 0.1})
    last = f"iou/{CLASSES - 1:02d}"
    best = run.contract.checkpoints.model_copy(update={"best_metric": last})
    run.contract = run.contract.model_copy(update={"checkpoints": best})
    assert run.drive(suspend_at=8) == SUSPEND_EXIT_CODE, run.log()
    stopped_at = run.progress().step
    assert run.progress().metrics[last] == stopped_at - 1
    assert run.drive() == 0, run.log()
    assert run.progress().resumed_from_step == stopped_at
    kept = manifest.committed(run.bucket)
    assert kept[-1].step == 16
    assert kept[-1].metrics["step"] == 1500, "what the training calls a step is its own"
    assert retention.best_of(kept, (last, "max")) == kept[-1]
    found = table(run.bucket)
    assert [row["step"] for row in found] == list(range(1, 17))
    assert [row["reported_step"] for row in found] == [100 * step for step in range(16)]
    assert [row[last] for row in found] == list(range(16))


@pytest.mark.parametrize(
    "reported", ["'step': n,", "", "'epoch': (n - 1) // 3,"], ids=["step", "none", "epoch"]
)
def test_the_reports_of_a_script_without_a_session_are_there_too(
    ray: LocalRay, tmp_path: Path, reported: str
) -> None:
    """Reports without a step are counted, and after a loss from the step of the checkpoint on."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("'step': n,", reported))
    run = Run(ray, tmp_path, None, {"mark": str(tmp_path / "died")}, script=script)
    assert run.drive() == 0, run.log()
    assert (tmp_path / "died").exists()
    found = table(run.bucket)
    assert [(row["step"], row["loss"]) for row in found] == [(n, 1 / n) for n in range(1, 9)]
    assert run.progress().step == 8


def test_checkpoints_without_files_count_as_reports_alone(ray: LocalRay, tmp_path: Path) -> None:
    """As of a script that reports one after each epoch, and writes into some of them."""
    script = tmp_path / "train.py"
    writes = '            Path(folder, "n.json").write_text(str(n))\n'
    some = SCRIPT.replace(writes, f"            if n == 2:\n    {writes}")
    script.write_text(some.replace("if n % 2 == 0 and rank == 0", "if rank == 0"))
    run = Run(ray, tmp_path, None, {"mark": str(tmp_path / "died")}, script=script)
    assert run.drive() == 0, run.log()
    restored = [one for one in run.progress().records if one.kind is RecordKind.RESTORED]
    assert [one.step for one in restored] == [0, 2]
    (kept,) = manifest.committed(run.bucket)
    assert (kept.step, list(kept.files)) == (2, ["n.json"])
    assert [row["loss"] for row in table(run.bucket)] == [1 / n for n in range(1, 9)]
    result = run_result.read(run.bucket)
    assert result is not None
    assert result.checkpoint_uri == run.bucket.uri(kept.path)
    assert result.metrics["loss"] == 1 / 8
    assert "the checkpoint of step 8 was reported without any file" in run.log()


SCRIPT = """
import json, os, signal, tempfile
from pathlib import Path
import ray.train
from ray.train import Checkpoint
from ray.train.torch import TorchTrainer

def train(config):
    found, first = ray.train.get_checkpoint(), 1
    if found is not None:
        with found.as_directory() as folder:
            first = json.loads(Path(folder, "n.json").read_text()) + 1
    rank = ray.train.get_context().get_world_rank()
    for n in range(first, 9):
        mark = Path(config["mark"])
        if n == 6 and rank == 1 and not mark.exists():
            mark.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "n.json").write_text(str(n))
            saved = Checkpoint.from_directory(folder) if n % 2 == 0 and rank == 0 else None
            ray.train.report({'step': n, "loss": 1 / n}, checkpoint=saved)

if __name__ == "__main__":
    config = json.loads(os.environ["TRAININGRUN_CONFIG"])
    TorchTrainer(train, train_loop_config=config).fit()
"""
