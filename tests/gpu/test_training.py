"""What a TrainingRun promises, for ranks on an NVIDIA GPU: real CUDA, real Ray.

Two ranks share one GPU and exchange gradients over Gloo, which NCCL refuses; a rank alone uses
NCCL.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.disturbed_runs import Disturbed
from support.trains_on_a_gpu import DIES_AT
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import ContractHang
from trainingrun_protocol.progress import RecordKind

SEED = 5


def a_run(
    ray: LocalRay, folder: Path, workers: int = 2, function: str = "train", **config: Any
) -> Disturbed:
    config = {"seed": SEED, **config}
    run = Disturbed(ray, folder, config, f"trains_on_a_gpu:{function}", workers)
    resources = {**run.contract.resources_per_worker, "GPU": 1.0}
    update = {
        "resources_per_worker": resources,
        "torch_backend": "gloo" if workers == 2 else "auto",
    }
    run.contract = run.contract.model_copy(update=update)
    return run


def digest(ray: LocalRay, folder: Path, workers: int = 2, **config: Any) -> str:
    """Of the weights of an undisturbed run."""
    run = a_run(ray, folder, workers, undisturbed=True, **config)
    assert run.drive() == 0, run.log()
    return str(run.metrics()["weights_sha256"])


@pytest.mark.parametrize(
    ("dead", "config"),
    [
        pytest.param(1, {}, id="rank 1, with BatchNorm"),
        pytest.param(1, {"fused": False}, id="rank 1, not fused"),
        pytest.param(0, {"norm": False}, id="rank 0"),
        pytest.param(1, {"width": 2**18}, id="rank 1, of a large state"),
    ],
)
def test_no_step_is_lost_and_no_bit_is_different_when_a_rank_is_killed(
    ray: LocalRay, tmp_path: Path, dead: int, config: dict[str, Any]
) -> None:
    run = a_run(ray, tmp_path / "run", signals={str(dead): "SIGKILL"}, **config)
    assert run.drive() == 0, run.log()
    assert run.resumed() == [
        f"resumed from step {DIES_AT}, which rank {1 - dead} saved after the loss"
    ], run.log()
    assert run.steps() == list(range(20))
    assert run.metrics()["weights_sha256"] == digest(ray, tmp_path / "undisturbed", **config)


@pytest.mark.parametrize(
    ("workers", "config"),
    [
        pytest.param(2, {}, id="two ranks"),
        pytest.param(2, {"accumulate": 4}, id="two ranks, accumulated gradients"),
        pytest.param(1, {}, id="one rank, NCCL"),
        pytest.param(1, {"width": 2**18}, id="one rank, of a large state"),
    ],
)
def test_a_run_that_is_suspended_and_resumed_ends_with_the_weights_of_one_that_was_not(
    ray: LocalRay, tmp_path: Path, workers: int, config: dict[str, Any]
) -> None:
    run = a_run(ray, tmp_path / "run", workers, **config)
    assert run.drive(suspend_at=8) != 0, "it was not suspended"
    assert run.drive() == 0, run.log()
    assert run.steps() == list(range(20))
    assert run.metrics()["weights_sha256"] == digest(
        ray, tmp_path / "undisturbed", workers, **config
    )


def test_what_an_object_of_the_users_own_has_on_the_gpu_comes_back_there(
    ray: LocalRay, tmp_path: Path
) -> None:
    run = a_run(ray, tmp_path / "run", workers=1, function="train_with_an_average")
    assert run.drive(suspend_at=8) != 0, "it was not suspended"
    assert run.drive() == 0, run.log()
    assert run.steps() == list(range(20))


def test_a_kernel_without_end_is_a_hang_and_costs_no_step(ray: LocalRay, tmp_path: Path) -> None:
    run = a_run(ray, tmp_path / "run", meets="a kernel without end")
    run.contract = run.contract.model_copy(update={"hang": ContractHang(after_seconds=8)})
    assert run.drive() == 0, run.log()
    (hang,) = [one for one in run.progress().records if one.kind is RecordKind.HANG]
    assert "trains_on_a_gpu.py" in hang.message
    assert run.steps() == list(range(20))
    assert run.metrics()["weights_sha256"] == digest(ray, tmp_path / "undisturbed")


@pytest.mark.parametrize(
    ("meets", "said"),
    [
        ("full memory", "OutOfMemoryError.*the GPU's memory is full"),
        ("a bad index", "an index is out of its range"),
    ],
)
def test_an_error_of_the_gpu_is_one_of_the_code_and_is_explained(
    ray: LocalRay, tmp_path: Path, meets: str, said: str
) -> None:
    run = a_run(ray, tmp_path / "run", meets=meets)
    assert run.drive() != 0
    messages = [one.message for one in run.progress().records]
    assert re.search(said, messages[-1], re.DOTALL), messages


def test_the_use_of_the_gpu_is_measured_and_only_ranks_have_memory_of_it(
    ray: LocalRay, tmp_path: Path
) -> None:
    run = a_run(ray, tmp_path / "run", function="train_for_a_while")
    run.start()
    progress = run.wait_until(
        lambda progress: (
            all((one.accelerator_share or 0) > 0.1 for one in progress.ranks)
            and len(progress.ranks) == 2
        )
    )
    assert all(one.accelerator_share <= 1 for one in progress.ranks)
    holders = subprocess.run(
        ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert sorted(map(int, holders)) == sorted(run.training_processes())
    (run.folder / "enough").touch()
    assert run.wait() == 0, run.log()
