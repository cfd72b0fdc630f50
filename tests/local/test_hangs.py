"""Hangs are found, told and ended, and cost no step: with real Ray."""

import os
import signal
from pathlib import Path

import pytest

from support import hangs_once
from support.local_runs import Run, two_workers
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import STACKS_REQUEST_FILE, ContractHang
from trainingrun_protocol.progress import RecordKind
from trainingrun_runtime.store import kept_stacks

# Of what `make test` leaves out: e2e stops a training process on a cluster.
pytestmark = pytest.mark.slow

PACE = {"steps": 120, "step_seconds": 0.1}


def hanging_run(ray: LocalRay, folder: Path, *hangs: int) -> Run:
    """Rank 1 is stopped once `stop_rank_1` is called; `hangs`: see `hangs_once`."""
    markers(folder).mkdir()
    config = {**PACE, "markers": str(markers(folder)), "hangs": hangs}
    run = Run(ray, folder, "support.hangs_once:train", config, every_seconds=300)
    run.contract = run.contract.model_copy(update={"hang": ContractHang(after_seconds=6)})
    return run


def markers(folder: Path) -> Path:
    return folder / "markers"


def stop_rank_1(folder: Path) -> None:
    (markers(folder) / hangs_once.STOP).touch()


def test_a_stopped_rank_is_replaced_and_no_step_is_lost(ray: LocalRay, tmp_path: Path) -> None:
    run = hanging_run(ray, tmp_path)
    run.start()
    run.wait_until(lambda progress: progress.step > 20)
    (run.state / STACKS_REQUEST_FILE).touch()  # as `trainingrun stacks --now` does
    run.wait_until(lambda _: not (run.state / STACKS_REQUEST_FILE).exists())
    (asked,) = kept_stacks.kept(run.bucket)
    assert list(asked.ranks) == [0, 1]
    stop_rank_1(tmp_path)
    assert run.wait() == 0, run.log()
    progress = run.progress()
    kinds = [one.kind for one in progress.records]
    assert kinds == [RecordKind.RESTORED, RecordKind.HANG, RecordKind.RESTORED]
    assert "after the loss" in progress.records[-1].message, "another rank has saved the step"
    hang = progress.hang
    assert hang is not None
    assert not hang.under_way
    assert [one.where.startswith("stopped in ") for one in hang.ranks if one.hangs] == [True]
    _, kept = kept_stacks.kept(run.bucket)
    assert hang.stacks == run.bucket.uri(kept.folder)
    texts = {rank: run.bucket.get(key) or b"" for rank, key in kept.ranks.items()}
    assert all(b"training_function.py" in text for text in texts.values())


def test_loops_locks_and_stops_each_cost_no_step_and_change_no_weight(
    ray: LocalRay, tmp_path: Path
) -> None:
    whole = Run(ray, tmp_path / "whole", "trainingrun_runtime.examples.linear:train", PACE)
    assert whole.drive() == 0, whole.log()
    run = hanging_run(ray, tmp_path, hangs_once.LOOP_AT, hangs_once.LOCK_AT)
    run.start()
    run.wait_until(lambda progress: progress.step > 20)
    stop_rank_1(tmp_path)
    assert run.wait() == 0, run.log()
    progress = run.progress()
    hangs = [one.message for one in progress.records if one.kind is RecordKind.HANG]
    assert len(hangs) == 3, hangs
    assert "has been stopped in" in hangs[0]
    assert "rank 1 has been in loop (hangs_once.py:" in hangs[1]
    assert "rank 0 has been in lock (hangs_once.py:" in hangs[2]
    lost = {one.kind for one in progress.records} - {RecordKind.RESTORED, RecordKind.HANG}
    assert not lost
    assert progress.seconds.lost_work == 0
    assert run.metrics()["weights_sha256"] == whole.metrics()["weights_sha256"]


def test_a_hang_that_is_only_reported_ends_nothing(ray: LocalRay, tmp_path: Path) -> None:
    run = hanging_run(ray, tmp_path)
    hang = run.contract.hang.model_copy(update={"action": "Report"})
    run.contract = run.contract.model_copy(update={"hang": hang})
    run.start()
    run.wait_until(lambda progress: progress.step > 20)
    stopped = run.training_process()
    os.kill(stopped, signal.SIGSTOP)
    found = run.wait_until(lambda progress: progress.hang is not None)
    assert found.hang is not None
    assert found.hang.under_way
    os.kill(stopped, signal.SIGCONT)
    assert run.wait() == 0, run.log()
    progress = run.progress()
    assert [one.kind for one in progress.records] == [RecordKind.RESTORED]
    assert progress.hang is not None
    assert not progress.hang.under_way


AFTER_FIT = """
import time
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from trainingrun_runtime.examples.linear import train

TorchTrainer(train, train_loop_config={"steps": 5}, scaling_config=ScalingConfig()).fit()
time.sleep(35)  # longer than ranks may be idle
"""


def test_a_script_that_works_on_after_its_training_is_no_hang(
    ray: LocalRay, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(AFTER_FIT)
    run = Run(ray, tmp_path, None, {}, script=script)
    run.contract = run.contract.model_copy(update={"hang": ContractHang(after_seconds=6)})
    assert run.drive() == 0, run.log()
    assert run.progress().hang is None


def test_a_hang_while_the_user_s_module_is_imported_is_found_and_ended(tmp_path: Path) -> None:
    logs = tmp_path / "ray"
    logs.mkdir()
    with two_workers(logs, IMPORT_HANGS=str(tmp_path / "hung")) as ray:
        run = Run(ray, tmp_path, "support.import_hangs:train", {"steps": 5})
        run.contract = run.contract.model_copy(update={"hang": ContractHang(after_seconds=25)})
        assert run.drive() == 0, run.log()
        progress = run.progress()
    hang, restored = progress.records
    assert (hang.kind, restored.kind) == (RecordKind.HANG, RecordKind.RESTORED)
    assert "has been in <module> (import_hangs.py:" in hang.message
    assert progress.step == 5


def test_what_ray_s_detector_of_nccl_finds_is_a_hang(tmp_path: Path) -> None:
    """With a stand-in for `ncclras`, which needs GPUs."""
    programs, hangs = Path(__file__).parents[1] / "support", tmp_path / "hangs"
    hangs.touch()
    logs = tmp_path / "ray"
    logs.mkdir()
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    with two_workers(logs, PATH=path, NCCL_HANGS=str(hangs)) as ray:
        run = Run(ray, tmp_path, "trainingrun_runtime.examples.linear:train", PACE)
        run.start(
            RAY_TRAIN_ENABLE_NCCL_HANG_DETECTOR="1",
            RAY_TRAIN_NCCL_RAS_ACTION="fail",
            RAY_TRAIN_NCCL_RAS_MIN_POLL_INTERVAL_S="1",
            RAY_TRAIN_NCCL_RAS_CONFIRM_DURATION_S="3",
        )
        kinds = {RecordKind.HANG}
        run.wait_until(lambda progress: kinds & {one.kind for one in progress.records})
        hangs.unlink()
        assert run.wait() == 0, run.log()
        progress = run.progress()
    (found,) = [one for one in progress.records if one.kind is RecordKind.HANG]
    assert found.message.startswith("NCCL hangs: 1 of 1 communicators have a collective mismatch")
    kept = {Path(one.key).name for one in run.bucket.list() if "/hang_detector/" in one.key}
    assert {"rank_0.log", "rank_1.log"} <= kept
    assert any(name.startswith("ncclras_") for name in kept)
