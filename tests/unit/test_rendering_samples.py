"""The samples are true: what they name is in the training image and takes their config."""

import importlib
from typing import Any

import pytest
import yaml

from support.goldens import BATCH_INFERENCE, SAMPLES, sample
from trainingrun_runtime.examples import batch_inference

FUNCTIONS = [
    file
    for file in SAMPLES
    # What imports a framework is in tests/frameworks.
    if ".frameworks." not in (sample(file).spec.training.function or ".frameworks.")
]


@pytest.mark.parametrize("file", FUNCTIONS, ids=lambda file: file.stem)
def test_a_samples_function_exists_and_knows_every_key_of_its_config(file: Any):
    training = sample(file).spec.training
    module, function = str(training.function).split(":")
    example = importlib.import_module(module)
    assert callable(getattr(example, function))
    example.Config(**training.config)


def test_the_job_for_batch_inference_calls_the_example_with_its_own_arguments():
    job = yaml.safe_load(BATCH_INFERENCE.read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", batch_inference.__name__]
    arguments = batch_inference.parser().parse_args(container["args"])
    storage = next(sample(file) for file in SAMPLES if file.stem == "digits").spec.storage
    assert arguments.run.startswith(f"{storage.uri}/digits-")
    assert container["envFrom"] == [{"secretRef": {"name": storage.credentials_secret}}]


def test_the_script_sample_is_valid_python_that_the_run_names():
    (file,) = [file for file in SAMPLES if file.stem == "script"]
    config_map = next(iter(yaml.safe_load_all(file.read_text())))
    script = sample(file).spec.training.script
    assert script is not None
    assert config_map["metadata"]["name"] == script.config_map
    compile(config_map["data"][script.file], script.file, "exec")
