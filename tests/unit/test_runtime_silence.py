"""What a training function that reports nothing is told to do."""

import pytest

from trainingrun_runtime.worker.worker import silence_sentence


@pytest.mark.parametrize(
    ("imported", "advice"),
    [
        ({"torch"}, "make a trainingrun_runtime.Session, or report checkpoints"),
        ({"torch", "lightning", "transformers"}, "SessionCallback(seed=0) to the trainer's"),
        ({"torch", "transformers", "accelerate"}, "prepare_trainer(trainer, seed=0)"),
        ({"xgboost"}, "use trainingrun_runtime.frameworks.xgboost.train"),
    ],
)
def test_the_sentence_names_what_reports_for_the_framework(imported: set[str], advice: str):
    said = silence_sentence(imported)
    assert said.startswith("the training function has reported nothing for 30 s")
    assert advice in said
