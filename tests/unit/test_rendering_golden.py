"""What is rendered is what the golden files show; UPDATE_GOLDEN=1 writes them anew."""

import os

import pytest
import yaml

from support.goldens import GOLDEN, cases

LIKE_DIGITS = (
    "accelerate", "combined", "deepspeed", "fsdp", "full-fine-tuning", "jax", "lightgbm",
    "lightning", "linear", "loader", "lora", "sweep", "sweep-grid", "sweep-optuna", "tensorflow",
    "transformers", "xgboost",
)  # fmt: skip
"""Samples that differ from another one in name, function, config, image and sizes alone."""
CASES = {
    name: found
    for name, found in cases().items()
    if name.removeprefix("sample-") not in LIKE_DIGITS
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_renders_as_its_golden_file_shows(name: str):
    file = GOLDEN / f"{name}.yaml"
    text = yaml.safe_dump_all(CASES[name], sort_keys=False, allow_unicode=True, width=100)
    if os.environ.get("UPDATE_GOLDEN") == "1":
        file.write_text(text)
    assert file.exists(), f"{file} is missing: run with UPDATE_GOLDEN=1"
    assert text == file.read_text(), "rendering changed: if meant, run with UPDATE_GOLDEN=1"


def test_every_golden_file_is_still_rendered():
    assert {file.stem for file in GOLDEN.glob("*.yaml")} == set(CASES)
