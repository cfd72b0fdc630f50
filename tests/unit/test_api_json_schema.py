"""The schema for editors takes each sample and finds what an editor has to underline."""

import json
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
import yaml

from support.goldens import SAMPLES
from trainingrun.api.json_schema import json_schema

VALIDATOR = jsonschema.Draft7Validator(json_schema())


def run_in(text: str) -> dict[str, Any]:
    return next(one for one in yaml.safe_load_all(text) if one["kind"] == "TrainingRun")


@pytest.mark.parametrize("file", SAMPLES, ids=lambda file: file.stem)
def test_each_sample_is_valid(file: Any):
    found = VALIDATOR.iter_errors(run_in(file.read_text()))
    assert [(error.json_path, error.message) for error in found] == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        pytest.param({"worker": {"count": 2}}, "$.spec", id="unknown field"),
        pytest.param({"workers": {"count": "two"}}, "$.spec.workers.count", id="text for a number"),
        pytest.param({"workers": {"counts": 2}}, "$.spec.workers", id="unknown field inside"),
        pytest.param({"sweep": {}}, "$.spec.sweep", id="required field"),
        pytest.param(
            {"workers": {"count": 2, "placement": "Pile"}}, "$.spec.workers.placement", id="enum"
        ),
    ],
)
def test_what_is_wrong_is_found_where_it_is(change: dict[str, Any], where: str):
    run = run_in(next(file for file in SAMPLES if file.stem == "digits").read_text())
    run["spec"] |= change
    assert where in {error.json_path for error in VALIDATOR.iter_errors(run)}


def test_a_pod_template_may_have_what_kubernetes_knows_and_this_schema_does_not():
    run = run_in(next(file for file in SAMPLES if file.stem == "digits").read_text())
    container = {"name": "ray-head", "resources": {"limits": {"example.com/fpga": 1}}, "tty": True}
    run["spec"]["podTemplate"] = {"spec": {"hostIPC": False, "containers": [container]}}
    assert list(VALIDATOR.iter_errors(run)) == []


def test_the_module_prints_it():
    command = [sys.executable, "-m", "trainingrun.api.json_schema"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == json_schema()
    jsonschema.Draft7Validator.check_schema(json_schema())
