"""The frameworks' samples are true: their functions are there and take their config."""

import importlib
from pathlib import Path

import pytest

from support.goldens import SAMPLES, sample

FUNCTIONS = [
    file for file in SAMPLES if ".frameworks." in (sample(file).spec.training.function or "")
]


@pytest.mark.parametrize("file", FUNCTIONS, ids=lambda file: file.stem)
def test_a_samples_function_exists_and_knows_every_key_of_its_config(file: Path) -> None:
    training = sample(file).spec.training
    module, function = str(training.function).split(":")
    example = importlib.import_module(module)
    assert callable(getattr(example, function))
    example.Config(**training.config)


def test_each_framework_has_a_sample_and_a_lock() -> None:
    locks = Path(__file__).parents[2] / "training_images" / "frameworks"
    assert {file.stem for file in FUNCTIONS} <= {file.stem for file in locks.glob("*.lock")}
