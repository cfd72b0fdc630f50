"""The frameworks' samples are true: their functions are there and take their config."""

import importlib
import re
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


@pytest.mark.parametrize("file", FUNCTIONS, ids=lambda file: file.stem)
def test_a_sample_s_image_is_one_that_can_be_made(file: Path) -> None:
    locks = Path(__file__).parents[2] / "training_images" / "frameworks"
    command = r"^# The image has the framework: make images EXTRAS=(\w+) TRAINING_IMAGE=(\S+)$"
    ((extra, image),) = re.findall(command, file.read_text(), re.MULTILINE)
    assert (locks / f"{extra}.lock").exists()
    assert sample(file).spec.image == image
