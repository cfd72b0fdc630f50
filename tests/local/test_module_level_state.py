"""What a module takes at its import is its own rank's, in the first group and in each later one."""

import json
import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.local_runs import Run, two_workers
from support.prestarted import processes
from support.processes import wait_for
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.progress import RecordKind

pytestmark = pytest.mark.slow

WORKERS, PER_NODE = 4, 2


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    """Two nodes, each with two workers and two GPUs as far as Ray knows."""
    gpus = tuple(map(str, range(WORKERS)))
    logs = tmp_path_factory.mktemp("ray")
    with two_workers(logs, workers_per_node=PER_NODE, gpus=gpus) as cluster:
        yield cluster


def a_script(folder: Path, notes: Path) -> Path:
    """Its config holds an object of the module, which is imported where that is unpickled."""
    script = folder / "script.py"
    script.write_text(
        textwrap.dedent(f"""
            from ray.train import ScalingConfig
            from ray.train.torch import TorchTrainer
            from support.module_level_state import Shard, train

            TorchTrainer(
                train,
                train_loop_config={{"folder": {str(notes)!r}, "shard": Shard()}},
                scaling_config=ScalingConfig(num_workers={WORKERS}),
            ).fit()
        """)
    )
    return script


def idle(ray: LocalRay) -> set[int]:
    """Processes that wait for the next workers."""
    found = processes(str(ray.head.state.parents[1]))
    return {p.pid for p in found if p.title == "ray::IDLE" and p.hook == "import_modules"}


@pytest.mark.parametrize("how", ["function", "script"])
def test_after_a_loss_each_module_has_its_own_rank_and_its_own_share_of_the_samples(
    ray: LocalRay, tmp_path: Path, how: str
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    function, script = "support.module_level_state:train", a_script(tmp_path, notes)
    if how == "function":
        run = Run(ray, tmp_path, function, {"folder": str(notes)}, workers=WORKERS)
    else:
        run = Run(ray, tmp_path, None, {}, script=script, workers=WORKERS)
    each = {**run.contract.resources_per_worker, "GPU": 1.0}
    run.contract = run.contract.model_copy(
        update={"resources_per_worker": each, "torch_backend": "gloo"}
    )
    run.start()
    run.wait_until(lambda progress: progress.step >= 5)
    wait_for(lambda: len(idle(ray)) == WORKERS, 120)
    prestarted = idle(ray)
    os.kill(run.training_process(), signal.SIGKILL)
    run.wait_until(lambda progress: len(list(notes.glob("[0-9]*.json"))) == 2 * WORKERS)
    (notes / "end").touch()
    assert run.wait() == 0, run.log()
    assert [r.kind for r in run.progress().records].count(RecordKind.WORKER_LOST) == 1

    groups = [noted_by(notes, group) for group in (1, 2)]
    for group in groups:
        assert [sample for noted in group for sample in noted["samples"][:1]] == list(
            range(WORKERS)
        )
        for rank, noted in enumerate(group):
            assert noted["module"] == {
                "RANK": rank,
                "WORLD_SIZE": WORKERS,
                "DEVICE": f"cuda:{rank % PER_NODE}",
                "PID": noted["in_function"]["pid"],
            }
            found = {key: noted["at_import"][key] for key in noted["in_function"]}
            alike = {**noted["in_function"], "thread": found["thread"]}
            assert found == alike, "a module finds what the training function finds"
            threads = {found["threads"], *found["pools"].values()}
            assert threads == {int(found["OMP_NUM_THREADS"])}, "as in a process of its own"
            assert len(found["pools"]) > 1, "OpenMP or BLAS of more than PyTorch"
    assert {noted["at_import"]["pid"] for noted in groups[1]} == prestarted
    assert {noted["sklearn_was_there"] for noted in groups[1]} == {True}
    once = ("thread", "signals", "threads")
    assert [[n["at_import"][k] for k in once] for n in groups[0]] == [
        [n["at_import"][k] for k in once] for n in groups[1]
    ]


def noted_by(folder: Path, group: int) -> list[dict[str, Any]]:
    """What the ranks of a group have noted, by rank."""
    return [json.loads((folder / f"{group}-{rank}.json").read_text()) for rank in range(WORKERS)]
