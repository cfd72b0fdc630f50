"""Batch inference with Ray Data reads the held-out images as the training has, on a real Ray."""

from pathlib import Path

import pyarrow.parquet
import pytest

from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_runtime import results

pytestmark = pytest.mark.slow


def test_the_answers_are_as_good_as_the_training_says(ray: LocalRay, tmp_path: Path) -> None:
    run = Run(ray, tmp_path, "trainingrun_runtime.examples.digits:train", {"epochs": 3})
    assert run.drive() == 0, run.log()
    found = results.open(run.bucket.root)
    assert found.result is not None
    accuracy = found.result.metrics["accuracy"]
    last = found.metrics["step"].max()
    assert (found.checkpoints[-1].step, len(found.metrics)) == (last, last)

    command = ["-m", "trainingrun_runtime.examples.batch_inference", run.bucket.root]
    log, answers = tmp_path / "answers.log", tmp_path / "answers"
    done = ray.start_on_head([*command, "--to", str(answers)], {}, log)
    assert done.wait(300) == 0, log.read_text()
    assert f"360 images, {accuracy:.4f} of them read well" in log.read_text()
    table = pyarrow.parquet.read_table(answers)
    assert len(table) == 360
    right = sum(a == b for a, b in zip(table["answer"], table["label"], strict=True))
    assert right / 360 == pytest.approx(accuracy, abs=1e-6)
