"""A process with PyTorch imported is ready before Ray creates an actor that needs it."""

import json
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from support.local_runs import Run, two_workers, wait_for_both_nodes
from support.prestarted import processes
from trainingrun_protocol.progress import RecordKind

pytestmark = pytest.mark.slow


def test_the_next_worker_gets_a_prestarted_process_that_imports_the_users_module_itself(
    tmp_path: Path,
) -> None:
    with two_workers(tmp_path, KILLS_ITSELF_FOLDER=str(tmp_path)) as ray:
        home = str(ray.head.state.parents[1])
        run = Run(ray, tmp_path, "support.kills_itself:train", {"home": home})
        assert run.drive() == 0, run.log()
    assert [r.kind for r in run.progress().records].count(RecordKind.WORKER_LOST) == 1
    assert run.metrics()["taken_over"] is True
    # For a second it would answer no rank, and all of them wait for it at their start.
    assert run.metrics()["coordinator_imports"] is False


@pytest.mark.parametrize("per_node", [1, 2])
def test_the_controller_and_the_first_workers_get_prestarted_processes(
    tmp_path: Path, per_node: int
) -> None:
    before = tmp_path / "before"
    script = tmp_path / "script.py"
    with two_workers(tmp_path, workers_per_node=per_node) as ray:
        home = str(ray.head.state.parents[1])
        script.write_text(
            textwrap.dedent(f"""
                import json, pathlib, time
                import torch
                from ray.train import ScalingConfig
                from ray.train.torch import TorchTrainer
                from support.prestarted import processes
                from trainingrun_runtime import Session

                def train():
                    session = Session(model=torch.nn.Linear(1, 1))
                    for _ in session.steps(100_000):
                        time.sleep(0.05)

                deadline = time.monotonic() + 120
                expected = {2 + 2 * per_node}
                while len(found := processes({home!r})) < expected and time.monotonic() < deadline:
                    time.sleep(0.1)
                pathlib.Path({str(before)!r}).write_text(json.dumps([p.pid for p in found]))
                TorchTrainer(train, scaling_config=ScalingConfig()).fit()
            """)
        )
        wait_for_both_nodes(ray, tmp_path)
        run = Run(ray, tmp_path, None, {}, script=script, workers=2 * per_node)
        run.start()
        run.wait_until(lambda progress: progress.step >= 1)
        titles = {process.pid: process.title.split(".")[0] for process in processes(home)}
        run.stop()
    assert Counter(titles[pid] for pid in json.loads(before.read_text())) == {
        "ray::TrainController": 1,
        "ray::SynchronizationActor": 1,
        "ray::RayTrainWorker": 2 * per_node,
    }
