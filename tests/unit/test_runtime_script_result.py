"""What `fit()` returns to a script: the metrics as they were reported, and what the run keeps."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle
from ray.train import Checkpoint, Result

from trainingrun_runtime.driver import trainer
from trainingrun_runtime.driver.trainer import RunResult, completed, last_metrics
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.manifest import FileDigest, Manifest
from trainingrun_runtime.store.reported_metrics import printable_metrics


def a_manifest(step: int, token: int) -> Manifest:
    return Manifest(
        path=f"checkpoints/0001-{token:06d}/step-{step}", step=step, world_size=2, attempt=1,
        fencing_token=token, index=step, metrics={"loss": "NaN"},
        files={"weights": FileDigest(1, "0" * 64)}, time=0,
    )  # fmt: skip


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket.open(f"file://{tmp_path}/run")


@pytest.fixture
def of_ray(bucket: Bucket) -> Result:
    """As Ray makes it where the second driver has made a checkpoint of the run."""
    path = f"{bucket.path}/checkpoints/0001-000002"
    own = Checkpoint(f"{path}/step-2")
    return Result(
        metrics=None, checkpoint=None, error=None, path=path, best_checkpoints=[(own, {"loss": 1})]
    )


@pytest.fixture(autouse=True)
def ray_s_from_path() -> Iterator[None]:
    before = Result.__dict__["from_path"]
    yield
    Result.from_path = before


def test_the_last_report_is_as_it_was_with_what_came_later() -> None:
    reported = {"loss": math.nan, "confusion": [[1, 2], [3, 4]], "rate": 0.1}
    said = {**printable_metrics(reported), "rate": 0.2, "score": "Infinity"}
    found = last_metrics(said, cloudpickle.dumps(reported))
    assert math.isnan(found.pop("loss"))
    assert found == {"confusion": [[1, 2], [3, 4]], "rate": 0.2, "score": math.inf}


def test_without_a_report_of_this_driver_the_metrics_are_those_of_the_run() -> None:
    assert last_metrics({"loss": 0.5}, b"") == {"loss": 0.5}
    assert last_metrics({}, b"") is None
    assert last_metrics({}, cloudpickle.dumps({})) == {}


def test_the_checkpoints_are_those_that_the_run_keeps_whoever_has_made_them(
    bucket: Bucket, of_ray: Result
) -> None:
    found = completed(of_ray, bucket, [a_manifest(1, 1), a_manifest(2, 2)], None, lambda: None)
    assert found.metrics is None
    (first, of_first), (second, of_second) = found.best_checkpoints or []
    assert first.path.endswith("checkpoints/0001-000001/step-1")
    assert math.isnan(of_first["loss"])
    assert (second, of_second) == (of_ray.best_checkpoints or [])[0]
    assert found.checkpoint is not None
    assert found.checkpoint.path.endswith("step-2")


def test_after_a_last_report_without_files_the_checkpoint_is_the_newest_that_has_some(
    bucket: Bucket, of_ray: Result
) -> None:
    of_ray.checkpoint = Checkpoint(f"{of_ray.path}/step-3")
    found = completed(of_ray, bucket, [a_manifest(1, 1), a_manifest(2, 2)], None, lambda: None)
    assert found.checkpoint is not None
    assert found.checkpoint.path.endswith("step-2")


def test_the_table_is_read_when_it_is_asked_for_and_once(bucket: Bucket, of_ray: Result) -> None:
    reads: list[Any] = []

    def read() -> list[int]:
        reads.append(None)
        return [1, 2]

    found = completed(of_ray, bucket, [], {"loss": 1}, read)
    assert reads == []
    assert found.metrics_dataframe == found.metrics_dataframe == [1, 2]
    assert len(reads) == 1
    assert completed(of_ray, bucket, [], {}, list).metrics_dataframe is None


def test_the_run_s_own_result_is_what_its_path_opens(bucket: Bucket, of_ray: Result) -> None:
    found = completed(of_ray, bucket, [], {}, list)
    trainer.answer_from_path(found, bucket)
    for path in (found.path, Path(found.path), f"file://{found.path}/", bucket.root):
        assert isinstance(found, RunResult)
        assert Result.from_path(path) is found
    with pytest.raises(RuntimeError, match="doesn't exist"):
        Result.from_path("/another/run")
