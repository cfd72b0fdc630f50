"""A process with its modules imported is ready before Ray creates an actor that needs it."""

from pathlib import Path
from typing import NamedTuple

from support.local_runs import Run, two_workers
from trainingrun.api.contract import WORKER_RESOURCE, RecordKind
from trainingrun_runtime import prestarted_worker

SYNCHRONIZATION = "ray::SynchronizationActor"
"""The actor that Ray's controller creates first, just before the workers."""


BOTH_NODES = f"""
import ray, time
ray.init(logging_level="ERROR")
while sum({WORKER_RESOURCE!r} in node["Resources"] for node in ray.nodes()) < 2:
    time.sleep(0.1)
"""
"""Ends when both workers' nodes have joined, as KubeRay waits for all pods."""


class Process(NamedTuple):
    """A worker process of Ray whose environment sets one of our setup hooks."""

    began: int
    title: str
    hook: str


def test_the_next_worker_gets_a_process_that_has_the_modules_of_the_killed_one(
    tmp_path: Path,
) -> None:
    loaded = tmp_path / "loaded"
    loaded.mkdir()
    with two_workers(tmp_path, KILLS_ITSELF_FOLDER=str(loaded)) as ray:
        run = Run(ray, tmp_path, "support.kills_itself:train", {})
        assert run.drive() == 0, run.log()
    assert [r.kind for r in run.progress().records].count(RecordKind.WORKER_LOST) == 1
    assert run.metrics()["taken_over"] is True


def test_the_controller_and_the_first_workers_get_prestarted_processes(tmp_path: Path) -> None:
    with two_workers(tmp_path) as ray:
        assert ray.start_on_head(["-c", BOTH_NODES], {}, tmp_path / "nodes.log").wait(60) == 0
        run = Run(ray, tmp_path, "trainingrun_runtime.examples.linear:train", {"steps": 200})
        run.start()
        run.wait_until(lambda progress: progress.step >= 1)
        found = _processes()
        run.stop()
    (created,) = {p.began for p in found if p.title.startswith(SYNCHRONIZATION)}
    early = {(p.title.split(".")[0], p.hook) for p in found if p.began < created}
    assert early == {
        ("ray::TrainController", "import_for_controller"),
        ("ray::RayTrainWorker", "import_modules"),
    }, f"{found}\n{run.log()}"


def _processes() -> list[Process]:
    found = []
    prefix = f"{prestarted_worker.prestart.SETUP_HOOK_ENV}={prestarted_worker.__name__}."
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            title = (entry / "cmdline").read_bytes().decode(errors="replace").strip("\0 ")
            began = int((entry / "stat").read_text().rpartition(")")[2].split()[19])
        except (OSError, IndexError):  # no process, or one that has ended
            continue
        hooks = [line.removeprefix(prefix) for line in environment if line.startswith(prefix)]
        if hooks:
            found.append(Process(began, title, hooks[0]))
    return found
