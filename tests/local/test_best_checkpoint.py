"""The best checkpoint by a metric that is reported after it was made, with real Ray."""

from pathlib import Path

import pytest

from support.evaluated_epochs import STEPS
from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import ContractCheckpoints
from trainingrun_runtime.store import manifest, run_result

pytestmark = pytest.mark.slow

ACCURACIES = [0.2, 0.9, 0.5, 0.4, 0.3]


def test_the_best_epoch_is_kept_also_where_its_evaluation_is_done_again(
    ray: LocalRay, tmp_path: Path
) -> None:
    config = {"accuracies": ACCURACIES, "dies_in": 1, "died": str(tmp_path / "died")}
    run = Run(ray, tmp_path, "support.evaluated_epochs:train", config)
    run.contract = run.contract.model_copy(
        update={
            "config": {**config, "bucket": run.bucket.root},
            "checkpoints": ContractCheckpoints(keep=2, best_metric="accuracy", every_steps=STEPS),
        }
    )
    assert run.drive() == 0, run.log()
    assert (tmp_path / "died").exists()
    made = manifest.committed(run.bucket)
    best = made[0]
    assert (best.step, best.metrics["accuracy"]) == (2 * STEPS, 0.9)
    assert "loss" in best.metrics, "as reported with it"
    assert made[-1].step == 5 * STEPS, "the newest is kept"
    assert {m.step for m in made[1:]} <= {4 * STEPS, 5 * STEPS}
    result = run_result.read(run.bucket)
    assert result is not None
    assert result.best_checkpoint_uri == run.bucket.uri(best.path)
    folders = {entry.key.split("/")[2] for entry in run.bucket.list("checkpoints")}
    assert folders == {m.path.rpartition("/")[2] for m in made}, "nothing was uploaded twice"


def test_a_checkpoint_of_weights_that_were_not_evaluated_is_not_rated(
    ray: LocalRay, tmp_path: Path
) -> None:
    run = Run(ray, tmp_path, "support.evaluated_epochs:train", {})
    run.contract = run.contract.model_copy(
        update={
            "config": {"accuracies": ACCURACIES, "waits": False},
            "checkpoints": ContractCheckpoints(keep=100, best_metric="accuracy", every_steps=2),
        }
    )
    assert run.drive() == 0, run.log()
    made = manifest.committed(run.bucket)
    between = [m for m in made if m.step % STEPS]
    assert between, "none was made in the middle of an epoch"
    assert [m.metrics for m in between if "accuracy" in m.metrics] == []
    assert made[-1].metrics["accuracy"] == ACCURACIES[-1]
