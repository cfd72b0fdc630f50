"""A replicated state that several ranks save, two on each of two nodes of a real Ray."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.large_state import a_model
from support.local_runs import Run, two_workers
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_runtime import results
from trainingrun_runtime.examples.repeatable import weights_sha256
from trainingrun_runtime.store import manifest

pytestmark = pytest.mark.slow

STEPS, WORKERS = 24, 4


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    with two_workers(tmp_path_factory.mktemp("ray"), workers_per_node=2) as cluster:
        yield cluster


def a_run(ray: LocalRay, folder: Path, every_seconds: float = 300, **config: float) -> Run:
    folder.mkdir()
    config = {"steps": STEPS, **config}
    function = "support.large_state:train"
    return Run(ray, folder, function, config, workers=WORKERS, every_seconds=every_seconds)


def test_ranks_restore_what_other_ranks_have_saved(ray: LocalRay, tmp_path: Path) -> None:
    whole = a_run(ray, tmp_path / "whole")
    assert whole.drive() == 0, whole.log()

    run = a_run(ray, tmp_path / "killed", every_seconds=1, step_seconds=0.3)
    run.start()
    run.wait_until(lambda progress: progress.step >= 8 and progress.checkpoint)
    # Several at once: the survivors may not make up for them.
    for process in run.training_processes():
        os.kill(process, signal.SIGKILL)
    assert run.wait() == 0, run.log()
    assert run.metrics() == whole.metrics()

    newest = manifest.committed(run.bucket)[-1]
    # Rank 2 is in another pod than rank 0.
    assert {name for name in newest.files if "state" in name} == {
        "state-0.safetensors",
        "state-2.safetensors",
    }
    sizes = [newest.files[name].size for name in ("state-0.safetensors", "state-2.safetensors")]
    assert max(sizes) < 1.3 * min(sizes)
    model = a_model()
    results.load(run.bucket.root, model)
    assert weights_sha256(model) == whole.metrics()["weights_sha256"]
