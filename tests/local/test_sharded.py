"""Sharded training (FSDP2, HSDP, tensor parallelism, both at once) on a real Ray."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader

from support.local_runs import Run, two_workers
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import ContractRestore
from trainingrun_protocol.progress import RecordKind
from trainingrun_runtime.store import manifest

pytestmark = pytest.mark.slow

STEPS = 40


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    """A Ray of four workers, two on each node."""
    with two_workers(tmp_path_factory.mktemp("ray"), workers_per_node=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def fsdp(four: LocalRay, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Makes runs of the example: `fsdp(workers=3, source=other)`."""

    def make(
        workers: int = 2, source: Run | None = None, every_seconds: float = 300, **config: Any
    ) -> Run:
        run = Run(
            four,
            tmp_path_factory.mktemp("run"),
            "trainingrun_runtime.examples.fsdp:train",
            {"steps": STEPS, "batch_size": 8, **config},
            every_seconds=every_seconds,
            workers=workers,
        )
        if source is not None:
            wanted = ContractRestore(uri=source.bucket.root)
            run.contract = run.contract.model_copy(update={"restore_from": wanted})
        return run

    return make


@pytest.fixture(scope="module")
def undisturbed(fsdp: Callable[..., Run]) -> Run:
    """A run of two workers, at its end."""
    run = fsdp()
    assert run.drive() == 0, run.log()
    return run


def whole_state(run: Run) -> dict[str, torch.Tensor]:
    """Every tensor of the newest checkpoint, put together by PyTorch's own reader."""
    newest = manifest.committed(run.bucket)[-1]
    folder = Path(run.bucket.root.removeprefix("file://")) / newest.path
    reader, found = HuggingFaceStorageReader(str(folder)), dict[str, torch.Tensor]()
    for key, saved in reader.read_metadata().state_dict_metadata.items():
        found[key] = torch.full(saved.size, torch.nan, dtype=saved.properties.dtype)
    with pytest.warns(UserWarning, match="in a single process"):
        dcp.load(found, storage_reader=reader, no_dist=True)
    return found


def kill_in_the_middle(run: Run) -> None:
    """Train to the end; one rank is killed once there is a checkpoint of its own part."""
    run.start()
    run.wait_until(lambda progress: progress.step >= 15 and progress.checkpoint)
    os.kill(run.training_process(), signal.SIGKILL)
    assert run.wait() == 0, run.log()
    restored = [one for one in run.progress().records if one.kind is RecordKind.RESTORED][1:]
    assert len(restored) == 1, "once, after the loss"
    assert 0 < (restored[0].step or 0) < STEPS
    # A survivor has its own part alone, so that the last checkpoint counts.
    assert "saved after the loss" not in restored[0].message


def test_killed_in_the_middle_it_ends_with_the_same_bits(
    fsdp: Callable[..., Run], undisturbed: Run
) -> None:
    run = fsdp(every_seconds=0.5, step_seconds=0.1)
    kill_in_the_middle(run)
    assert run.metrics()["weights_sha256"] == undisturbed.metrics()["weights_sha256"]
    newest = manifest.committed(run.bucket)[-1]
    assert {name for name in newest.files if name.startswith("rank-")} == {
        "rank-0.safetensors", "rank-1.safetensors"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "workers", "computed_in"),
    [
        pytest.param("mixed precision", 2, "torch.bfloat16", id="FSDP in mixed precision"),
        pytest.param("tensor parallelism", 2, "torch.float32", id="tensor parallelism alone"),
        pytest.param("both", 4, "torch.float32", id="FSDP and tensor parallelism on four"),
    ],
)
def test_each_kind_of_sharding_ends_with_the_same_bits_when_killed(
    four: LocalRay, tmp_path: Path, kind: str, workers: int, computed_in: str
) -> None:
    def a_run(name: str, step_seconds: float, every_seconds: float) -> Run:
        (tmp_path / name).mkdir()
        config = {"kind": kind, "steps": STEPS, "step_seconds": step_seconds}
        return Run(
            four,
            tmp_path / name,
            "support.sharded_kinds:train",
            config,
            every_seconds=every_seconds,
            workers=workers,
        )

    whole = a_run("whole", 0.0, 300)
    assert whole.drive() == 0, whole.log()
    assert whole.metrics()["computed_in"] == computed_in
    assert whole.metrics()["digests"] == 1, "what is replicated differs from rank to rank"
    killed = a_run("killed", 0.1, 0.5)
    kill_in_the_middle(killed)
    assert killed.metrics() == whole.metrics()


@pytest.mark.parametrize(
    ("workers", "mesh"),
    [
        pytest.param(3, {}, id="FSDP on three"),
        pytest.param(4, {"replicas": 2}, id="HSDP on four"),
        pytest.param(4, {"tensor_parallel": 2}, id="FSDP and tensor parallelism on four"),
    ],
)
def test_another_number_of_workers_and_another_mesh_go_on_with_the_same_state(
    fsdp: Callable[..., Run], undisturbed: Run, workers: int, mesh: dict[str, int]
) -> None:
    loaded = fsdp(workers, undisturbed, **mesh)
    assert loaded.drive() == 0, loaded.log()
    assert loaded.progress().resumed_from_step == STEPS
    assert loaded.metrics()["weights_sha256"] == undisturbed.metrics()["weights_sha256"]
    before, after = whole_state(undisturbed), whole_state(loaded)
    assert "optimizer.state.0.exp_avg" in before
    assert before.keys() == after.keys()
    assert [key for key in before if not torch.equal(before[key], after[key])] == []


def test_it_trains_on_where_it_was_restored(fsdp: Callable[..., Run], undisturbed: Run) -> None:
    sharded = fsdp(4, undisturbed, steps=STEPS + 5, tensor_parallel=2)
    assert sharded.drive() == 0, sharded.log()
    assert sharded.progress().resumed_from_step == STEPS
    assert sharded.progress().step == STEPS + 5
    assert sharded.metrics()["loss"] < 2


def test_ranks_of_one_machine_have_one_download(four: LocalRay, tmp_path: Path) -> None:
    def a_run(name: str) -> Run:
        (tmp_path / name).mkdir()
        config = {"notes": str(tmp_path), "steps": 10}
        return Run(four, tmp_path / name, "support.notes_files:train", config, workers=4)

    source, run = a_run("source"), a_run("run")
    assert source.drive() == 0, source.log()
    wanted = ContractRestore(uri=source.bucket.root)
    run.contract = run.contract.model_copy(update={"restore_from": wanted})
    assert run.drive() == 0, run.log()
    files = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert files[1:] == files[:-1]
