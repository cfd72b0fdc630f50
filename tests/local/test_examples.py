"""The examples, trained by the real driver on a real Ray: what they leave, and that they resume."""

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import SUSPEND_FILE
from trainingrun_protocol.exit_codes import SUSPEND_EXIT_CODE
from trainingrun_runtime.store.bucket import Bucket

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def a_run(ray: LocalRay, tmp_path: Path) -> Callable[..., Run]:
    """Makes runs: `a_run("linear", steps=60)`."""

    def make(example: str, **config: Any) -> Run:
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return Run(ray, folder, f"trainingrun_runtime.examples.{example}:train", config)

    return make


def test_linear_finds_the_line_and_ends_alike_when_interrupted(a_run: Callable[..., Run]) -> None:
    whole = a_run("linear", steps=60)
    assert whole.drive() == 0
    undisturbed = whole.metrics()
    assert undisturbed["slope"] == pytest.approx(3, abs=0.1)
    assert undisturbed["intercept"] == pytest.approx(2, abs=0.1)

    broken = a_run("linear", steps=60, step_seconds=0.1)
    assert broken.drive(suspend_at=10) == SUSPEND_EXIT_CODE
    (broken.state / SUSPEND_FILE).unlink()
    assert broken.drive() == 0
    assert 10 <= (broken.progress().resumed_from_step or 0) < 60
    assert broken.metrics()["weights_sha256"] == undisturbed["weights_sha256"]


def test_digits_learns_real_digits(a_run: Callable[..., Run]) -> None:
    run = a_run("digits", epochs=8, batch_size=32)
    assert run.drive() == 0
    metrics = run.metrics()
    assert metrics["accuracy"] > 0.9
    assert metrics["loss"] < 0.5
    assert len(metrics["weights_sha256"]) == 64


def test_the_loader_ends_alike_when_interrupted(a_run: Callable[..., Run]) -> None:
    whole = a_run("loader", epochs=4)
    assert whole.drive() == 0, whole.log()
    assert whole.metrics()["accuracy"] > 0.5
    assert whole.progress().step == 4 * 12

    broken = a_run("loader", epochs=4, step_seconds=0.1)
    assert broken.drive(suspend_at=16) == SUSPEND_EXIT_CODE, broken.log()
    (broken.state / SUSPEND_FILE).unlink()
    assert broken.drive() == 0, broken.log()
    assert broken.metrics()["weights_sha256"] == whole.metrics()["weights_sha256"]


def test_techniques_that_are_combined_end_alike_when_interrupted(a_run: Callable[..., Run]) -> None:
    whole = a_run("combined", steps=60)
    assert whole.drive() == 0, whole.log()
    assert whole.metrics()["accuracy"] > 0.8

    broken = a_run("combined", steps=60, step_seconds=0.1)
    assert broken.drive(suspend_at=20) == SUSPEND_EXIT_CODE, broken.log()
    (broken.state / SUSPEND_FILE).unlink()
    assert broken.drive() == 0, broken.log()
    assert 20 <= (broken.progress().resumed_from_step or 0) < 60
    assert broken.metrics() == whole.metrics()


def test_what_ray_data_loads_is_learned(a_run: Callable[..., Run]) -> None:
    run = a_run("ray_data", epochs=2)
    assert run.drive() == 0, run.log()
    assert run.metrics()["accuracy"] > 0.3
    assert run.progress().step == 2 * 12


def test_resnet18_reads_idx_files_from_storage(a_run: Callable[..., Run], tmp_path: Path) -> None:
    data = Bucket.open(f"file://{tmp_path}/data")
    random = np.random.default_rng(0)
    for part, count in (("train", 64), ("t10k", 16)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = random.integers(0, 50, (count, 28, 28), dtype=np.uint8)
        images[np.arange(count), labels * 2, :] = 255  # a bright line, lower for larger digits
        data.put(
            f"{part}-labels-idx1-ubyte", struct.pack(">HBBI", 0, 8, 1, count) + labels.tobytes()
        )
        header = struct.pack(">HBBIII", 0, 8, 3, count, 28, 28)
        data.put(f"{part}-images-idx3-ubyte", header + images.tobytes())
    run = a_run("mnist_resnet18", data=data.root, width=2, batch_size=8, epochs=2)
    assert run.drive() == 0
    assert run.progress().step == 8
    assert float(16 * run.metrics()["accuracy"]).is_integer(), "of all 16 images of the test"


def test_a_misspelled_setting_fails_with_the_known_ones(a_run: Callable[..., Run]) -> None:
    run = a_run("linear", stepz=60)
    assert run.drive() == 1
    failure = run.progress().failure
    assert failure is not None
    assert failure.kind == "Application"
    assert "has 'stepz'; this example knows seed, step_seconds, steps, lr" in failure.message


def test_three_workers_that_resume_end_alike_too(tmp_path: Path) -> None:
    """With two workers a sum has only one order; the order of three must not change on resume."""
    roots = os.pathsep.join(str(ROOT / root) for root in ("operator", "training_images"))

    def digest(begin: int, end: int, file: str) -> str:
        script = ROOT / "tests" / "support" / "three_workers.py"
        done = subprocess.run(
            [sys.executable, str(script), str(begin), str(end), str(tmp_path / file)],
            env={**os.environ, "PYTHONPATH": roots},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout.strip()

    undisturbed = digest(0, 10, "whole.pt")
    digest(0, 4, "broken.pt")
    assert digest(4, 10, "broken.pt") == undisturbed
