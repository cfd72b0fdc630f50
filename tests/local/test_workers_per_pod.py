"""Two workers on each of two nodes, on real Ray: where they are, and what they survive together."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.dies_in_a_step import DIES_AT
from support.disturbed_runs import Disturbed
from support.local_runs import Run, has_ancestor, two_workers
from support.prestarted import Process, processes
from support.processes import wait_for
from trainingrun.local.ray_nodes import LocalRay, Preemption
from trainingrun_protocol.contract import WATCHERS_FOLDER
from trainingrun_protocol.progress import RecordKind

pytestmark = pytest.mark.slow

WORKERS, PER_NODE = 4, 2
STEPS = 60


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    """Two nodes, each with two workers and two GPUs as far as Ray knows."""
    gpus = tuple(map(str, range(WORKERS)))
    logs = tmp_path_factory.mktemp("ray")
    with two_workers(logs, workers_per_node=PER_NODE, gpus=gpus) as cluster:
        yield cluster


def digits(ray: LocalRay, folder: Path, step_seconds: float = 0.0) -> Run:
    config = {"steps": STEPS, "step_seconds": step_seconds}
    function = "trainingrun_runtime.examples.digits:train"
    folder.mkdir(exist_ok=True)
    return Run(ray, folder, function, config, workers=WORKERS, every_seconds=2)


@pytest.fixture(scope="module")
def undisturbed(ray: LocalRay, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the weights with which an undisturbed run ends."""
    run = digits(ray, tmp_path_factory.mktemp("undisturbed"))
    assert run.drive() == 0, run.log()
    assert run.progress().world_size == WORKERS
    return str(run.metrics()["weights_sha256"])


def training(ray: LocalRay) -> dict[int, Process]:
    """The processes that train."""
    home = str(ray.head.state.parents[1])
    return {p.pid: p for p in processes(home) if p.title.startswith("ray::RayTrainWorker")}


def idle(ray: LocalRay) -> set[int]:
    """Processes that wait for the next workers."""
    found = processes(str(ray.head.state.parents[1]))
    return {p.pid for p in found if p.title == "ray::IDLE" and p.hook == "import_modules"}


def test_each_worker_has_its_place_on_its_node_and_a_gpu_of_its_own(
    ray: LocalRay, tmp_path: Path
) -> None:
    run = Run(ray, tmp_path, "support.own_gpu:train", {"places": str(tmp_path)}, workers=WORKERS)
    each = {**run.contract.resources_per_worker, "GPU": 1.0}
    run.contract = run.contract.model_copy(
        update={"resources_per_worker": each, "torch_backend": "gloo"}
    )
    assert run.drive() == 0, run.log()
    places = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(WORKERS)]

    assert [place["ranks"] for place in places] == [[0, 2, 0], [1, 2, 0], [0, 2, 1], [1, 2, 1]]
    assert [
        (p["RANK"], p["LOCAL_RANK"], p["LOCAL_WORLD_SIZE"], p["NODE_RANK"]) for p in places
    ] == [
        ("0", "0", "2", "0"),
        ("1", "1", "2", "0"),
        ("2", "0", "2", "1"),
        ("3", "1", "2", "1"),
    ]
    nodes = [place["node"] for place in places]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    devices = {node.name: node.devices for node in ray.workers}
    for place in places:
        assert place["CUDA_VISIBLE_DEVICES"] == ",".join(devices[place["node"]])
    assert sorted(str(gpu) for place in places for gpu in place["gpus"]) == ["0", "1", "2", "3"]


def test_a_killed_worker_costs_no_bit_and_all_four_are_replaced_by_prestarted_processes(
    ray: LocalRay, tmp_path: Path, undisturbed: str
) -> None:
    run = digits(ray, tmp_path, step_seconds=0.2)
    run.start()
    run.wait_until(lambda progress: progress.step >= 20 and progress.checkpoint is not None)
    wait_for(lambda: len(idle(ray)) == WORKERS, 60)
    prestarted = idle(ray)
    before = training(ray)
    assert len(before) == WORKERS
    os.kill(run.training_process(), signal.SIGKILL)
    run.wait_until(lambda progress: progress.records and progress.step > STEPS - 10)
    after = training(ray)
    assert run.wait() == 0, run.log()

    assert after.keys() == prestarted
    assert [record.kind for record in run.progress().records].count(RecordKind.WORKER_LOST) == 1
    assert run.metrics()["weights_sha256"] == undisturbed


def test_a_node_with_notice_saves_once_for_both_of_its_workers(
    ray: LocalRay, tmp_path: Path, undisturbed: str
) -> None:
    run = digits(ray, tmp_path, step_seconds=0.1)
    run.start()
    run.wait_until(lambda progress: progress.step >= 10)
    first, second = ray.workers
    assert [len(list((n.state / WATCHERS_FOLDER).iterdir())) for n in (first, second)] == [2, 2]
    preemption = Preemption(ray, 0)
    preemption.poll(0)
    run.wait_until(lambda progress: preemption.poll(0) or preemption.done)
    assert run.wait() == 0, run.log()

    progress = run.progress()
    assert [record.kind for record in progress.records].count(RecordKind.PREEMPTED) == 1
    assert progress.seconds.lost_work == 0
    assert run.metrics()["weights_sha256"] == undisturbed
    assert [node.name for node in ray.workers] == [first.name, "local-3"]


def test_the_ranks_of_one_node_save_the_last_step_when_both_ranks_of_the_other_node_are_lost(
    ray: LocalRay, tmp_path: Path
) -> None:
    config = {"seed": 5, "norm": False}
    whole = Disturbed(ray, tmp_path / "whole", {**config, "undisturbed": True}, workers=WORKERS)
    assert whole.drive() == 0, whole.log()

    signals = {"0": "SIGSTOP", "1": "SIGSTOP"}  # so that the step in which they are lost is known
    run = Disturbed(ray, tmp_path / "run", {**config, "signals": signals}, workers=WORKERS)
    run.start()
    stopped = [run.wait_until_stopped(rank) for rank in (0, 1)]
    (lost,) = {
        node.name: node
        for node in ray.workers
        for pid in stopped
        if has_ancestor(pid, {node.process.pid})
    }.values()
    ray.remove(lost)
    ray.add_worker()
    assert run.wait() == 0, run.log()

    progress = run.progress()
    assert run.resumed() == [f"resumed from step {DIES_AT}, which rank 2 saved after the loss"]
    assert run.steps() == list(range(20)), "none is done twice"
    assert progress.world_size == WORKERS
    assert progress.seconds.lost_work == 0
    losses = [record for record in progress.records if record.kind is RecordKind.WORKER_LOST]
    assert [record.node for record in losses] == [lost.name], "one loss, of one node"
    assert run.metrics()["weights_sha256"] == whole.metrics()["weights_sha256"]
