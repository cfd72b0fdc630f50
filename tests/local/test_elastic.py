"""Fewer workers rather than none: a lost rank's group goes on smaller, and grows again."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.elastic_runs import EPOCHS, SAMPLES, ElasticRun
from support.local_runs import two_workers
from support.s3 import CREDENTIALS
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.progress import RecordKind

pytestmark = pytest.mark.slow

ONCE = [Counter(range(SAMPLES))] * EPOCHS


@pytest.fixture
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    """A Ray of each test's own: nodes leave it."""
    with two_workers(tmp_path_factory.mktemp("ray"), **CREDENTIALS) as cluster:
        yield cluster


def test_a_lost_node_costs_its_rank_and_no_step_and_the_group_grows_once_a_node_joins(
    ray: LocalRay, tmp_path: Path
) -> None:
    run = ElasticRun(ray, tmp_path / "run", seed=5, step_seconds=0.5)
    run.start()
    run.wait_until(lambda progress: progress.step >= 4)
    assert run.progress().world_size == 2
    began = time.monotonic()
    ray.remove(ray.workers[1])
    alone = run.wait_until(lambda progress: progress.resizes and progress.state == "Training")
    print(f"training with one rank after {time.monotonic() - began:.1f} s")
    assert alone.world_size == 1
    (resize,) = alone.resizes
    assert (resize.from_workers, resize.to_workers) == (2, 1)
    began = time.monotonic()
    ray.add_worker()
    grown = run.wait_until(
        lambda progress: len(progress.resizes) == 2 and progress.state == "Training"
    )
    print(f"training with two ranks after {time.monotonic() - began:.1f} s")
    assert grown.world_size == 2
    assert run.wait() == 0, run.log()
    assert run.sizes() == [(2, 1), (1, 2)]
    assert run.seen() == ONCE, "each sample once in each epoch, at three sizes"
    progress = run.progress()
    assert progress.seconds.lost_work == 0
    kinds = [record.kind for record in progress.records]
    assert kinds == [
        RecordKind.RESTORED, RecordKind.WORKER_LOST, RecordKind.RESTORED, RecordKind.RESTORED
    ]  # fmt: skip
    lost, again = run.resumed()
    assert lost.endswith("which rank 0 saved after the loss; 1 worker instead of 2")
    assert again.endswith("; 2 workers instead of 1")
    assert {one.workers for one in progress.sizes} == {1, 2}
    assert run.metrics()["workers"] == 2
