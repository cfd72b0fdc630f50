"""A node that waits with everything loaded takes a lost one's place."""

import time
from collections import Counter
from pathlib import Path

import pytest

from support.elastic_runs import EPOCHS, SAMPLES, ElasticRun
from support.local_runs import two_workers
from support.prestarted import Process, processes
from support.s3 import CREDENTIALS
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.progress import RecordKind, RunState

pytestmark = pytest.mark.slow


def idle(ray: LocalRay, node: str) -> list[Process]:
    """The processes that wait on a node for a worker."""
    home = ray.head.state.parents[1] / node
    return [found for found in processes(f"{home}/") if found.title == "ray::IDLE"]


def test_training_goes_on_in_the_process_that_waits_and_the_next_node_waits(tmp_path: Path) -> None:
    with two_workers(tmp_path, **CREDENTIALS) as ray:
        ray.add_worker()
        run = ElasticRun(ray, tmp_path / "run", seed=5, step_seconds=5.0)
        fixed = {"minimum_workers": None, "standby": 1}
        run.contract = run.contract.model_copy(update=fixed)
        run.start()
        (spare,) = run.wait_until(lambda progress: progress.spare_pods).spare_pods
        deadline = time.monotonic() + 60
        while not (waiting := idle(ray, spare)) and time.monotonic() < deadline:
            time.sleep(0.1)
        before = run.progress()
        (trains,) = [node for node in ray.workers if node.name != spare][1:]
        ray.remove(trains)
        began = time.monotonic()
        progress = run.wait_until(
            lambda progress: (
                progress.state is RunState.TRAINING
                and len(progress.records) > len(before.records)
                and progress.step > before.step
            )
        )
        print(f"training after {time.monotonic() - began:.1f} s")
        assert progress.world_size == 2
        assert {found.pid for found in waiting} & set(run.training_processes())
        assert len(ray.workers) == 2, "no node took the place of the lost one yet"
        next_one = ray.add_worker()
        run.wait_until(lambda progress: progress.spare_pods == [next_one.name])
        ray.remove(next_one)
        run.wait_until(lambda progress: next_one.name in progress.lost_nodes)
        (run.folder / "go-on").touch()
        assert run.wait() == 0, run.log()
        progress = run.progress()
    assert run.seen() == [Counter(range(SAMPLES))] * EPOCHS
    assert progress.seconds.lost_work == 0, progress.records
    kinds = [record.kind for record in progress.records]
    assert kinds == [RecordKind.RESTORED, RecordKind.WORKER_LOST, RecordKind.RESTORED]
    assert progress.spare_pods == [next_one.name], "it has ended while it waited"
    assert next_one.name in progress.lost_nodes
