"""What `results` finds in a run's folder, and which weights it loads: with a real S3 server."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from support.checkpoints import put
from support.sharded_checkpoints import save, save_trained
from support.sharded_models import HSDP, whole_model
from support.sweeps import SWEEP, a_trial, note
from trainingrun_protocol.progress import ProgressResult
from trainingrun_runtime import results
from trainingrun_runtime.coordinator.inbox import Inbox
from trainingrun_runtime.store import run_result, verification
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease
from trainingrun_runtime.store.metrics_writer import ReportWriter
from trainingrun_runtime.store.reported_metrics import Row
from trainingrun_runtime.store.storage_errors import DamagedError
from trainingrun_runtime.sweep import record
from trainingrun_runtime.sweep.record import Origin


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong in a store is asked for again without a pause."""
    monkeypatch.setattr(verification, "PAUSES_S", (0.0, 0.0, 0.0))


@pytest.fixture
def run(bucket: Bucket, tmp_path: Path) -> tuple[Bucket, list[nn.Linear]]:
    """A run with two checkpoints, of which the first is the best; and their models."""
    Lease.take(bucket, 1, "pod", 1000)
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    for index, (model, error) in enumerate(zip(models, (0.1, 0.2), strict=True), 1):
        folder = tmp_path / f"files-{index}"
        folder.mkdir()
        objects = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
        save(folder, 1, lambda rank, objects=objects: objects)
        put(bucket, folder, 10 * index, index, metrics={"error": error}, best_metric="error")
    return bucket, models


def opened(bucket: Bucket) -> results.Results:
    return results.open(bucket.root, bucket.endpoint, bucket.region)


def load(bucket: Bucket, uri: str, model: Any, **options: Any) -> results.Checkpoint:
    return results.load(uri, model, endpoint=bucket.endpoint, region=bucket.region, **options)


def test_metrics_checkpoints_and_result_are_found(run: tuple[Bucket, list[nn.Linear]]) -> None:
    bucket, _ = run
    inbox = Inbox()
    inbox.begin(1, None)
    inbox.add_rows(1, [Row(step, 1000.0, {"loss": 1 / step}) for step in (1, 2, 3)])
    ReportWriter(bucket, 1, 1, inbox.rows).write()
    found = opened(bucket)
    assert isinstance(found.metrics, pd.DataFrame)
    assert found.metrics["step"].tolist() == [1, 2, 3]
    assert found.metrics["loss"].tolist() == [1, 1 / 2, 1 / 3]
    assert str(found.metrics["time"].dt.tz) == "UTC"
    assert [one.step for one in found.checkpoints] == [10, 20]
    best = found.best_checkpoint
    assert best is not None
    assert (best.step, best.metrics) == (10, {"error": 0.1})
    assert best.uri == f"{bucket.root}/checkpoints/0001-000001/step-0000000010-1"
    assert found.result is None
    run_result.write(Lease.take(bucket, 1, "pod", 1000), ProgressResult(metrics={"error": 0.2}))
    result = opened(bucket).result
    assert result is not None
    assert result.metrics == {"error": 0.2}


def test_weights_are_loaded_from_a_checkpoint_and_from_the_newest_one_of_a_run(
    run: tuple[Bucket, list[nn.Linear]],
) -> None:
    bucket, models = run
    model = nn.Linear(3, 2)
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    assert load(bucket, bucket.root, model).step == 20
    assert torch.equal(model.weight, models[1].weight)
    best = opened(bucket).best_checkpoint
    assert best is not None
    assert load(bucket, f"{best.uri}/", torch.compile(model)).step == 10
    assert torch.equal(model.weight, models[0].weight)
    assert torch.equal(torch.rand(1), expected), "the random state stays as it was"


def a_stored_model(bucket: Bucket, folder: Path) -> nn.Linear:
    """The model of a new checkpoint."""
    model = nn.Linear(3, 2)
    folder.mkdir()
    save(folder, 1, lambda rank: {"model": model})
    put(bucket, folder, 10, 1)
    return model


@pytest.mark.parametrize("above", ["checkpoints", "checkpoints/2026-11/team"])
def test_weights_are_loaded_of_a_run_in_a_folder_that_is_called_checkpoints(
    tmp_path: Path, above: str
) -> None:
    bucket = Bucket.open(f"file://{tmp_path}/{above}/digits-1a2b3c4d")
    Lease.take(bucket, 1, "pod", 1000)
    stored, model = nn.Linear(3, 2), nn.Linear(3, 2)
    (tmp_path / "files").mkdir()
    save(tmp_path / "files", 1, lambda rank: {"model": stored})
    put(bucket, tmp_path / "files", 10, 1)
    for uri in (bucket.root, opened(bucket).checkpoints[0].uri):
        assert load(bucket, uri, model).step == 10
        assert torch.equal(model.weight, stored.weight)


def test_of_a_sweep_the_best_trial_is_opened_and_loaded(bucket: Bucket, tmp_path: Path) -> None:
    lease = Lease.take(bucket, 1, "pod", 1000)
    trials = note(lease, a_trial(1, 0.5), a_trial(2, 0.1), a_trial(3, None))
    stored = {number: a_stored_model(trials[number], tmp_path / f"{number}") for number in (1, 2)}
    found = opened(bucket)
    assert (found.trial, found.uri) == (2, trials[2].root)
    assert found.sweep is not None
    assert [(row.number, row.value) for row in found.sweep.trials] == [
        (1, 0.5),
        (2, 0.1),
        (3, None),
    ]
    assert [one.uri.startswith(trials[2].root) for one in found.checkpoints] == [True]
    model = nn.Linear(3, 2)
    load(bucket, bucket.root, model)
    assert torch.equal(model.weight, stored[2].weight)
    load(bucket, bucket.root, model, trial=1)
    assert torch.equal(model.weight, stored[1].weight)
    for trial, why in ((3, "has not begun to train"), (4, "has no trial 4; name one from 1 to 3")):
        with pytest.raises(results.NoRun, match=why):
            results.open(bucket.root, bucket.endpoint, bucket.region, trial=trial)


def test_a_trial_that_waits_has_the_weights_with_which_it_goes_on(
    bucket: Bucket, tmp_path: Path
) -> None:
    lease = Lease.take(bucket, 1, "pod", 1000)
    trials = note(lease, a_trial(1, 0.5), a_trial(2, 0.1))
    stored = a_stored_model(trials[2], tmp_path / "better")
    legs = [a_trial(n, 0.1, leg=2, origin=Origin(number=2, leg=1, step=10)) for n in (1, 2)]
    record.write(lease, {leg.number: leg for leg in legs}, SWEEP)
    model = nn.Linear(3, 2)
    load(bucket, bucket.root, model, trial=1)
    assert torch.equal(model.weight, stored.weight)


def test_what_cannot_be_loaded_is_named(run: tuple[Bucket, list[nn.Linear]]) -> None:
    bucket, models = run
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="no state of 'net'; name one of its objects: model"):
        load(bucket, bucket.root, model, name="net")
    with pytest.raises(results.NoRun, match=r"there is no checkpoint .*step-3; .*\(steps: 10, 20"):
        load(bucket, f"{bucket.root}/checkpoints/0001-000001/step-3", model)
    with pytest.raises(results.NoRun, match="there is no"):
        load(bucket, f"{bucket.root}-other", model)
    newest = opened(bucket).checkpoints[-1]
    key = newest.uri.removeprefix(f"{bucket.root}/")
    content = bucket.get(f"{key}/session.pt")
    assert content is not None
    bucket.put(f"{key}/session.pt", content[:-1] + b"x")
    with pytest.raises(DamagedError, match=r"session.pt has another content than was committed"):
        load(bucket, newest.uri, model)
    assert load(bucket, bucket.root, model).step == 10, "the newest intact one"
    assert torch.equal(model.weight, models[0].weight)


class Trees:
    """What a framework keeps under a name of its own."""

    content = np.zeros(0, np.uint8)

    def state_dict(self) -> dict[str, Any]:
        return {"trees": self.content}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.content = state["trees"]


def test_an_object_that_is_no_model_is_loaded_by_its_name(bucket: Bucket, tmp_path: Path) -> None:
    Lease.take(bucket, 1, "pod", 1000)
    trained, loaded = Trees(), Trees()
    trained.content = np.arange(100, dtype=np.uint8)
    (tmp_path / "files").mkdir()
    save(tmp_path / "files", 1, lambda rank: {"booster": trained})
    put(bucket, tmp_path / "files", 5, 1)
    load(bucket, bucket.root, loaded, name="booster")
    assert loaded.content.tobytes() == trained.content.tobytes()


def test_a_checkpoint_of_a_script_of_its_own_is_named_as_such(
    bucket: Bucket, tmp_path: Path
) -> None:
    Lease.take(bucket, 1, "pod", 1000)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.bin").write_bytes(b"1")
    put(bucket, tmp_path / "mine", 5, 1)
    with pytest.raises(ValueError, match=r"no session.pt, so it was not written by a Session"):
        load(bucket, bucket.root, nn.Linear(3, 2))


def test_weights_that_were_trained_sharded_are_put_together(bucket: Bucket, tmp_path: Path) -> None:
    Lease.take(bucket, 1, "pod", 1000)
    (tmp_path / "shards").mkdir()
    save_trained(tmp_path / "shards", HSDP)
    put(bucket, tmp_path / "shards", 7, 1)
    model, _ = whole_model(trained=False)
    load(bucket, bucket.root, model)
    trained, _ = whole_model(trained=True)
    for name, value in trained.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
