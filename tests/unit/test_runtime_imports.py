"""What each process of the runtime does not load: a second of every start, for each."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LIGHT = [
    ("trainingrun_runtime.progress.document", "ray"),  # it says why this Ray cannot be used
    ("trainingrun_runtime.coordinator.coordinator", "ray.train"),
    ("trainingrun_runtime.driver.driver", "ray.train"),  # imported in a thread
    # Where only the extra `cli` is installed:
    ("trainingrun_runtime.results", "ray"),
    ("trainingrun_runtime.results", "torch"),
    ("trainingrun_runtime.checkpoints.downloads", "ray"),
    ("trainingrun_runtime.checkpoints.downloads", "torch"),
    ("trainingrun_runtime.store.metrics_table", "ray"),
    ("trainingrun_runtime.store.retention", "ray"),
]


@pytest.mark.parametrize(("module", "heavy"), LIGHT)
def test_a_process_loads_no_more_than_it_needs(module: str, heavy: str):
    script = f"import sys, {module}; sys.exit({heavy!r} in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT / "training_images",
        env={"PYTHONPATH": str(ROOT / "operator")},
        check=False,
    )
    assert done.returncode == 0, f"{module} loads {heavy}"
