"""Ray's internals are what the runtime expects of them, or one sentence says what differs."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from trainingrun_protocol.contract import CONTRACT_ENV, PROGRESS_FILE
from trainingrun_protocol.progress import RunState
from trainingrun_runtime import __main__ as entrypoint
from trainingrun_runtime.progress import document as progress_document
from trainingrun_runtime.ray_internals import expected
from trainingrun_runtime.ray_internals.expected import FIELDS, NAMES, PARAMETERS, UnknownRay, check

ROOT = Path(__file__).parents[2]


def test_the_installed_ray_is_known() -> None:
    check()


@pytest.mark.parametrize("version", ["2.57.1", "2.61.0", "3.0.0"])
def test_a_version_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(expected.metadata, "version", lambda name: version)
    with pytest.raises(UnknownRay, match=rf"Ray {version} is not .* use an image with ray>=2\.58"):
        check()


@pytest.mark.parametrize("table", [PARAMETERS, FIELDS, NAMES], ids=["call", "field", "name"])
def test_a_ray_that_lacks_any_of_them_is_refused(
    monkeypatch: pytest.MonkeyPatch, table: dict[tuple[str, str], Any]
) -> None:
    for (module, name), wanted in table.items():
        with monkeypatch.context() as lacking:
            lacking.setitem(table, (module, f"{name}_as_it_was"), wanted)
            sentence = rf"has no {module}.{name}_as_it_was, .* use an image with ray>=2\.58,<2\.61"
            with pytest.raises(UnknownRay, match=sentence):
                check()


@pytest.mark.parametrize(("module", "name"), PARAMETERS)
def test_a_ray_with_other_parameters_is_refused(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    *path, last = name.split(".")
    owner = expected._find(module, ".".join(path)) if path else __import__(module, fromlist=["_"])
    monkeypatch.setattr(owner, last, lambda self, surprise: None)
    with pytest.raises(UnknownRay, match="with parameters self, surprise"):
        check()


def test_a_ray_whose_context_keeps_its_checkpoint_elsewhere_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = next(key for key in FIELDS if key[1] == "TrainContext")
    monkeypatch.setitem(FIELDS, key, frozenset({"checkpoint", "restored_from"}))
    with pytest.raises(UnknownRay, match="has TrainContext without restored_from"):
        check()


def test_the_range_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = [
        each for each in project["optional-dependencies"]["runtime"] if each.startswith("ray[")
    ]
    lowest, below = (".".join(map(str, each)) for each in (expected.LOWEST, expected.BELOW))
    assert wanted.partition("]")[2] == f">={lowest},<{below}"


def test_a_driver_with_an_unknown_ray_ends_with_the_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    contract = {
        **{"name": "a", "namespace": "b", "uid": "c", "attempt": 3},
        "storage": {"uri": "file:///nowhere"},
    }
    monkeypatch.setenv(CONTRACT_ENV, json.dumps(contract))
    monkeypatch.setenv("TRAININGRUN_STATE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(expected.metadata, "version", lambda name: "2.61.0")
    assert entrypoint.main() == 1
    document = progress_document.read(tmp_path / PROGRESS_FILE)
    assert document is not None
    assert document.state is RunState.FAILED
    assert document.attempt == 3
    assert document.failure is not None
    assert "use an image with ray>=2.58,<2.61" in document.failure.message
