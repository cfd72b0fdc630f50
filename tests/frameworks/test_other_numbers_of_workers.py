"""What a framework cannot do with another number of workers is refused before anything is lost."""

from collections.abc import Callable
from typing import Any

import pytest

from support.local_runs import Run
from trainingrun_protocol.exit_codes import FAILED_EXIT_CODE

BY_NUMBER = "leaves out by their number the batches that were trained on, and with workers.minimum"


@pytest.mark.parametrize(
    ("example", "kept", "config", "said"),
    [
        pytest.param("lightning", False, {}, f"Lightning's loop {BY_NUMBER}", id="Lightning"),
        pytest.param(
            "transformers", False, {}, f"a Transformers trainer {BY_NUMBER}", id="Transf."
        ),
        pytest.param("accelerate", False, {}, f"an Accelerate loader {BY_NUMBER}", id="Accelerate"),
        pytest.param("tensorflow", False, {}, f"a TensorFlow model {BY_NUMBER}", id="TensorFlow"),
        pytest.param(
            "deepspeed", False, {"zero_stage": 2}, "is divided among the ranks (ZeRO)", id="ZeRO"
        ),
        pytest.param(
            "deepspeed", True, {"zero_stage": 0}, "counts the batches of a step", id="DeepSpeed"
        ),
        pytest.param("xgboost", True, {}, "this session has no ResumableDataLoader", id="XGBoost"),
        pytest.param(
            "lightgbm", True, {}, "this session has no ResumableDataLoader", id="LightGBM"
        ),
    ],
)
def test_it_is_refused_in_a_sentence(
    a_run: Callable[..., Run], example: str, kept: bool, config: dict[str, Any], said: str
) -> None:
    run = a_run(example, **config)
    elastic = {"minimum_workers": 1, "global_batch": "keep" if kept else "scale"}
    run.contract = run.contract.model_copy(update=elastic)
    assert run.drive() == FAILED_EXIT_CODE, run.log()
    progress = run.progress()
    assert progress.failure is not None
    assert said in progress.failure.message
    assert progress.step == 0
