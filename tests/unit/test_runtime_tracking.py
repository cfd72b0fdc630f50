"""Event files are uploaded as they grow, and MLflow's run is found again by the next attempt."""

import os
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from trainingrun_protocol.contract import (
    STATE_DIRECTORY_ENV,
    TENSORBOARD_FOLDER_ENV,
    ContractStorage,
    ContractTracking,
    ContractTrial,
    RunContract,
)
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.storage_errors import StorageError
from trainingrun_runtime.tracking import mlflow_run, tracking
from trainingrun_runtime.tracking.event_files import EventFiles


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket.open(f"file://{tmp_path}/run")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "events"
    made.mkdir()
    return made


def names(bucket: Bucket) -> list[str]:
    return [entry.key for entry in bucket.list("tensorboard")]


def test_a_file_that_has_grown_is_uploaded_again_and_no_other(folder: Path, bucket: Bucket) -> None:
    files = EventFiles(folder, bucket, 600)
    (folder / "one").write_bytes(b"a")
    (folder / "hparams").mkdir()
    (folder / "hparams" / "two").write_bytes(b"b")
    (folder / "empty").touch()
    (folder / "link").symlink_to(folder / "one")
    files.send()
    assert names(bucket) == ["tensorboard/hparams/two", "tensorboard/one"]

    bucket.delete(names(bucket))
    (folder / "one").write_bytes(b"aa")
    files.send()
    assert names(bucket) == ["tensorboard/one"]
    assert bucket.get("tensorboard/one") == b"aa"


def test_what_could_not_be_uploaded_is_uploaded_later(
    folder: Path, bucket: Bucket, tmp_path: Path
) -> None:
    files = EventFiles(folder, bucket, 600)
    (folder / "one").write_bytes(b"a")
    (tmp_path / "run" / "tensorboard").write_text("a file where the folder is to be")
    with pytest.raises(StorageError):
        files.send()
    (tmp_path / "run" / "tensorboard").unlink()
    files.send()
    assert names(bucket) == ["tensorboard/one"]


def a_contract(bucket: Bucket, **wanted: Any) -> RunContract:
    return RunContract(
        name="digits",
        namespace="default",
        uid="0",
        attempt=1,
        storage=ContractStorage(uri=bucket.root),
        tracking=ContractTracking(**wanted),
    )


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(STATE_DIRECTORY_ENV, str(tmp_path / "state"))
    monkeypatch.delenv(TENSORBOARD_FOLDER_ENV, raising=False)
    monkeypatch.delenv(mlflow_run.RUN_ID_ENV, raising=False)
    return tmp_path / "state"


@pytest.mark.parametrize(("rank", "uploaded"), [(0, ["tensorboard/events"]), (1, [])])
def test_the_end_of_rank_0_uploads_what_is_left(
    state: Path, bucket: Bucket, rank: int, uploaded: list[str]
) -> None:
    contract = a_contract(bucket, tensorboard_every_seconds=600)

    def train() -> None:
        with tracking(rank, contract, bucket):
            place = Path(os.environ[TENSORBOARD_FOLDER_ENV])
            assert place == state / "tensorboard"
            place.mkdir(parents=True, exist_ok=True)
            (place / "events").write_bytes(b"a")
            raise ValueError("bad batch")

    with pytest.raises(ValueError, match="bad batch"):
        train()
    assert names(bucket) == uploaded


def test_trials_on_one_pod_upload_their_own_event_files(state: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        bucket = Bucket.open(f"file://{tmp_path}/run/trials/{number:04d}")
        trial = ContractTrial(number=number, metric="loss")
        contract = a_contract(bucket, tensorboard_every_seconds=600)
        with tracking(0, contract.model_copy(update={"trial": trial}), bucket):
            place = Path(os.environ[TENSORBOARD_FOLDER_ENV])
            (place / f"events-{number}").write_bytes(b"a")
        assert names(bucket) == [f"tensorboard/events-{number}"]


class Server:
    """The answers of an MLflow server, by the four methods of its client that are called."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: list[tuple[str, str, dict[str, str]]] = []

    def get_experiment_by_name(self, name: str) -> Any:
        found = self.experiments.get(name)
        return SimpleNamespace(experiment_id=found) if found else None

    def create_experiment(self, name: str) -> str:
        self.experiments[name] = f"e{len(self.experiments)}"
        return self.experiments[name]

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        self.runs.append((experiment, run_name, tags))
        return self._run(len(self.runs) - 1)

    def search_runs(
        self, experiments: list[str], filter_string: str, order_by: list[str], max_results: int
    ) -> list[Any]:
        return [
            self._run(number)
            for number, (experiment, _, tags) in enumerate(self.runs)
            if experiment in experiments
            and filter_string in {f"tags.`{key}` = '{value}'" for key, value in tags.items()}
        ][:max_results]

    def _run(self, number: int) -> Any:
        return SimpleNamespace(info=SimpleNamespace(run_id=f"r{number}"))


def install(monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    module = ModuleType("mlflow")
    module.MlflowClient = client
    monkeypatch.setitem(sys.modules, "mlflow", module)


def test_the_next_attempt_finds_the_run_that_the_first_one_made(
    state: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    install(monkeypatch, lambda: server)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "curves")
    found = []
    for _ in range(2):
        monkeypatch.delenv(mlflow_run.RUN_ID_ENV, raising=False)
        with tracking(0, a_contract(bucket, mlflow=True), bucket):
            found.append(os.environ[mlflow_run.RUN_ID_ENV])
    assert found == ["r0", "r0"]
    assert server.runs == [("e0", "digits", {"trainingrun.uid": "0"})]
    assert mlflow_run.find_or_make(server, "digits", "another one") == "r1"


def test_a_run_id_of_the_users_own_is_kept(
    state: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    install(monkeypatch, lambda: server)
    monkeypatch.setenv(mlflow_run.RUN_ID_ENV, "mine")
    mlflow_run.set_run_id("digits", "0")
    assert (os.environ[mlflow_run.RUN_ID_ENV], server.runs) == ("mine", [])


def test_training_begins_without_mlflow_and_the_log_says_why(
    state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    mlflow_run.set_run_id("digits", "0")
    assert "mlflow is not installed; add it to training.requirements" in caplog.text

    def refuse() -> Any:
        raise RuntimeError("401 Unauthorized\nno key")

    install(monkeypatch, refuse)
    mlflow_run.set_run_id("digits", "0")
    assert "MLflow has no run for this one (401 Unauthorized)" in caplog.text

    over = threading.Event()
    install(monkeypatch, lambda: over.wait() and Server())
    monkeypatch.setattr(mlflow_run, "WAIT_S", 0.01)
    mlflow_run.set_run_id("digits", "0")
    over.set()
    assert "MLflow did not answer within" in caplog.text
    assert mlflow_run.RUN_ID_ENV not in os.environ
