"""What is rendered is what the golden files show; UPDATE_GOLDEN=1 writes them anew."""

import os

import pytest

from support.goldens import CASES, GOLDEN, golden, shown


@pytest.mark.parametrize("name", CASES)
def test_a_run_renders_as_its_golden_file_shows(name: str):
    file, text = golden(name), shown(name)
    if os.environ.get("UPDATE_GOLDEN") == "1":
        file.write_text(text)
    assert file.exists(), f"{file} is missing: run with UPDATE_GOLDEN=1"
    assert text == file.read_text(), "rendering changed: if meant, run with UPDATE_GOLDEN=1"


def test_every_golden_file_is_still_rendered():
    assert set(GOLDEN.iterdir()) == {golden(name) for name in CASES}
