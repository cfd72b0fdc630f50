"""Ray's internals are what the runtime expects of them, or one sentence says what differs."""

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
from ray.train.v2._internal.execution.worker_group import WorkerGroup, state, worker_group

from trainingrun_protocol.contract import CONTRACT_ENV, PROGRESS_FILE
from trainingrun_protocol.progress import RunState
from trainingrun_runtime import __main__ as entrypoint
from trainingrun_runtime.progress import document as progress_document
from trainingrun_runtime.ray_internals import expected, training
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


class Place:
    """A placement group, in which a worker group has no processes."""

    placement_group = None

    def __init__(self) -> None:
        self.given_back = 0

    def wait(self, timeout_seconds: float) -> bool:
        return True

    def shutdown(self) -> None:
        self.given_back += 1


class Dies(training.WorkerGroupCallback):
    """A rank dies when the group connects, and maybe Ray's controller asks it once more."""

    def __init__(self, *, asks: bool) -> None:
        self._asks, self.told = asks, 0

    def after_worker_group_start(self, worker_group: Any) -> None:
        raise RayActorError

    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        self.told += 1
        if self._asks:
            raise RayActorError


@pytest.mark.parametrize("asks", [False, True])
def test_a_worker_group_that_fails_to_start_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    """Ray's controller knows nothing of it, so the next one would wait for that place in vain."""
    place, callback = Place(), Dies(asks=asks)
    no_ray: dict[tuple[Any, str], Any] = {
        (worker_group, "ray"): SimpleNamespace(
            _raylet=SimpleNamespace(RAY_NODE_ID_KEY="id"),
            get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "node"),
        ),
        (worker_group, "SynchronizationActor"): SimpleNamespace(
            options=lambda **_: SimpleNamespace(remote=lambda **_: object())
        ),
        (state, "_shutdown_workers"): lambda workers: None,
        (state, "_shutdown_sync_actor"): lambda actor: None,
        (WorkerGroup, "_check_cluster_resources_and_raise_if_insufficient"): lambda *_: None,
        (WorkerGroup, "_create_placement_group"): lambda *_: place,
        (WorkerGroup, "_create_workers"): lambda *_, **__: [],
        (WorkerGroup, "_init_train_context"): lambda *_: None,
        (WorkerGroup, "_start"): WorkerGroup._start,  # which is replaced, and put back afterwards
    }
    for (owner, name), stub in no_ray.items():
        monkeypatch.setattr(owner, name, stub)
    training.end_groups_that_fail_to_start()
    run = SimpleNamespace(
        run_config=SimpleNamespace(storage_context=None), backend_config=None, scaling_config=None
    )
    group = SimpleNamespace(num_workers=0, resources_per_worker={})
    with pytest.raises(WorkerGroupStartupFailedError):
        WorkerGroup.create(run, group, [callback])  # type: ignore[arg-type]
    assert (place.given_back, callback.told) == (1, 1)
