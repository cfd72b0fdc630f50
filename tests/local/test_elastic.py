"""Fewer workers rather than none: a lost rank's group goes on smaller, and grows again."""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.elastic_runs import EPOCHS, SAMPLES, ElasticRun
from support.local_runs import Run, two_workers, wait_for_both_nodes
from support.s3 import CREDENTIALS
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.exit_codes import FAILED_EXIT_CODE
from trainingrun_protocol.progress import Progress, RecordKind, RunState

pytestmark = pytest.mark.slow

ONCE = [Counter(range(SAMPLES))] * EPOCHS


@pytest.fixture
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    """A Ray of each test's own: nodes leave it."""
    with two_workers(tmp_path_factory.mktemp("ray"), **CREDENTIALS) as cluster:
        yield cluster


def wait_for_resize(run: Run, number: int) -> Progress:
    """The document once so many resizes are over; prints how long that took."""
    began = time.monotonic()
    progress = run.wait_until(
        lambda progress: len(progress.resizes) == number and progress.state is RunState.TRAINING
    )
    print(f"training with {progress.world_size} after {time.monotonic() - began:.1f} s")
    return progress


def test_a_lost_node_costs_no_step_and_the_group_grows_once_a_node_joins(
    ray: LocalRay, tmp_path: Path
) -> None:
    run = ElasticRun(ray, tmp_path / "run", seed=5, step_seconds=0.3)
    wait_for_both_nodes(ray, tmp_path)
    run.start()
    assert run.wait_until(lambda progress: progress.step >= 4).world_size == 2
    ray.remove(ray.workers[1])
    assert wait_for_resize(run, 1).world_size == 1
    ray.add_worker()
    assert wait_for_resize(run, 2).world_size == 2
    assert run.wait() == 0, run.log()
    assert run.sizes() == [(2, 1), (1, 2)]
    assert run.seen() == ONCE, "each sample once in each epoch, at three sizes"
    progress = run.progress()
    assert progress.seconds.lost_work == 0
    kinds = [record.kind for record in progress.records]
    assert kinds == [
        RecordKind.RESTORED, RecordKind.WORKER_LOST, RecordKind.RESTORED, RecordKind.RESTORED
    ], "growth is no loss"  # fmt: skip
    lost, again = run.resumed()
    assert re.search(r", which rank [01] saved after the loss; 1 worker instead of 2$", lost)
    assert again.endswith("; 2 workers instead of 1")
    assert {one.workers for one in progress.sizes} == {1, 2}
    assert run.metrics() == {"workers": 2, "rate": pytest.approx(0.02)}


def test_a_killed_process_whose_node_lives_changes_no_size(ray: LocalRay, tmp_path: Path) -> None:
    run = ElasticRun(ray, tmp_path / "run", seed=5, step_seconds=0.1)
    wait_for_both_nodes(ray, tmp_path)
    run.start()
    run.wait_until(lambda progress: progress.step >= 4)
    os.kill(run.training_process(), signal.SIGKILL)
    assert run.wait() == 0, run.log()
    assert run.sizes() == []
    assert run.seen() == ONCE


def test_an_epochs_end_that_is_too_small_for_two_ranks_is_done_by_one(
    ray: LocalRay, tmp_path: Path
) -> None:
    """Of 5 samples one rank takes 2 and 2; for the last one a second rank would have none."""
    ray.remove(ray.workers[1])
    run = ElasticRun(ray, tmp_path / "run", samples=5, saved_at=2)
    run.start()
    run.wait_until(lambda progress: progress.checkpoint and progress.checkpoint.step == 2)
    ray.add_worker()
    wait_for_both_nodes(ray, tmp_path)
    os.kill(run.training_process(), signal.SIGKILL)
    run.wait_until(lambda progress: len(progress.resizes) == 2)
    assert run.sizes() == [(1, 2), (2, 1)], "two begin, and leave the rest to one"
    (run.folder / "go-on").touch()
    assert run.wait() == 0, run.log()
    assert run.seen() == [Counter(range(5))] * EPOCHS
    losses = [r.kind for r in run.progress().records if r.kind is not RecordKind.RESTORED]
    assert losses == [RecordKind.WORKER_LOST]


def test_what_each_rank_has_for_itself_is_refused_before_anything_is_lost(
    ray: LocalRay, tmp_path: Path
) -> None:
    run = ElasticRun(ray, tmp_path / "run", own=True)
    wait_for_both_nodes(ray, tmp_path)
    assert run.drive() == FAILED_EXIT_CODE, run.log()
    failure = run.progress().failure
    assert failure is not None
    assert "each rank has its own noise, which no other number of ranks" in failure.message
    assert {step for step, _, _ in run.steps()} == {0}


SCRIPT = """
import os
import tempfile
import time

import ray.train
import torch
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def train(config):
    model = prepare_model(torch.nn.Linear(4, 1))
    bare = getattr(model, "module", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    context, begin = ray.train.get_context(), 0
    found = ray.train.get_checkpoint()
    if found is not None:
        with found.as_directory() as folder:
            saved = torch.load(os.path.join(folder, "state.pt"))
            bare.load_state_dict(saved["model"])
            begin = saved["epoch"] + 1
    for epoch in range(begin, 40):
        time.sleep(0.5)
        loss = model(torch.ones(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": bare.state_dict(), "epoch": epoch}
            checkpoint = None
            if context.get_world_rank() == 0:
                torch.save(state, os.path.join(folder, "state.pt"))
                checkpoint = Checkpoint.from_directory(folder)
            metrics = {"epoch": epoch, "workers": context.get_world_size()}
            ray.train.report(metrics, checkpoint=checkpoint)


scaling = ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=0)
print(TorchTrainer(train, scaling_config=scaling).fit().metrics)
"""


def test_an_elastic_script_loses_every_node_and_goes_on_with_those_that_come(
    ray: LocalRay, tmp_path: Path
) -> None:
    script = tmp_path / "elastic.py"
    script.write_text(SCRIPT)
    run = Run(ray, tmp_path, None, {}, script=script)
    elastic = {"minimum_workers": 1, "resize_seconds": 0}
    run.contract = run.contract.model_copy(update=elastic)
    wait_for_both_nodes(ray, tmp_path)
    run.start()
    run.wait_until(lambda progress: progress.checkpoint and progress.checkpoint.step >= 2)
    for node in ray.workers:
        ray.remove(node)
    run.wait_until(lambda progress: progress.state is RunState.RECOVERING)
    ray.add_worker()
    assert wait_for_resize(run, 1).world_size == 1
    ray.add_worker()
    assert wait_for_resize(run, 2).world_size == 2
    assert run.wait() == 0, run.log()
    metrics = run.metrics()
    assert (metrics["epoch"], metrics["workers"]) == (39, 2)
    kinds = {record.kind for record in run.progress().records}
    assert kinds == {RecordKind.RESTORED, RecordKind.WORKER_LOST}, "no setting is overruled"
