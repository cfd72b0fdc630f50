"""Hangs are found, told and ended, and cost no step: with real Ray."""

import os
import signal
from pathlib import Path

from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import ContractHang
from trainingrun_protocol.progress import RecordKind
from trainingrun_runtime.store import kept_stacks


def hanging_run(ray: LocalRay, folder: Path, function: str, config: dict[str, object]) -> Run:
    run = Run(ray, folder, function, config, every_seconds=300)
    run.contract = run.contract.model_copy(update={"hang": ContractHang(after_seconds=6)})
    return run


def test_a_stopped_rank_is_replaced_and_no_step_is_lost(ray: LocalRay, tmp_path: Path) -> None:
    function = "trainingrun_runtime.examples.linear:train"
    config = {"steps": 120, "step_seconds": 0.1}
    run = hanging_run(ray, tmp_path, function, config)
    run.start()
    run.wait_until(lambda progress: progress.step > 20)
    os.kill(run.training_process(), signal.SIGSTOP)
    assert run.wait() == 0, run.log()
    progress = run.progress()
    kinds = [one.kind for one in progress.records]
    assert kinds == [RecordKind.RESTORED, RecordKind.HANG, RecordKind.RESTORED]
    assert "after the loss" in progress.records[-1].message, "another rank has saved the step"
    hang = progress.hang
    assert hang is not None
    assert not hang.under_way
    assert [one.where.startswith("stopped in ") for one in hang.ranks if one.hangs] == [True]
    (kept,) = kept_stacks.kept(run.bucket)
    assert hang.stacks == run.bucket.uri(kept.folder)
    texts = {rank: run.bucket.get(key) or b"" for rank, key in kept.ranks.items()}
    assert all(b"training_function.py" in text for text in texts.values())
