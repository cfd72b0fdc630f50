"""A result counts only while its driver holds the run: in a real S3 server and on disk."""

import pytest

from trainingrun_protocol.progress import ProgressResult
from trainingrun_runtime.store import run_result
from trainingrun_runtime.store.bucket import Bucket, StorageError
from trainingrun_runtime.store.lease import Lease, Superseded

DONE = ProgressResult(metrics={"accuracy": 0.9}, checkpoint_uri="s3://runs/c/60")


def a_driver(bucket: Bucket, attempt: int = 1) -> Lease:
    return Lease.take(bucket, attempt, "pod", 100)


def test_a_run_without_a_result_is_not_done(bucket: Bucket) -> None:
    assert run_result.read(bucket) is None
    a_driver(bucket)
    assert run_result.read(bucket) is None


def test_a_result_is_read_back(bucket: Bucket) -> None:
    assert run_result.write(a_driver(bucket), DONE) == DONE
    assert run_result.read(bucket) == DONE


def test_a_result_whose_answer_was_lost_may_be_written_again(bucket: Bucket) -> None:
    driver = a_driver(bucket)
    run_result.write(driver, DONE)
    assert run_result.write(driver, DONE) == DONE


def test_the_first_result_of_a_driver_stays(bucket: Bucket) -> None:
    driver = a_driver(bucket)
    run_result.write(driver, DONE)
    assert run_result.write(driver, DONE.model_copy(update={"metrics": {}})) == DONE
    assert run_result.read(bucket) == DONE


def test_a_superseded_driver_writes_no_result(bucket: Bucket) -> None:
    old = a_driver(bucket)
    a_driver(bucket)
    with pytest.raises(Superseded, match="driver 2 holds the run; this is driver 1"):
        run_result.write(old, DONE)
    assert run_result.read(bucket) is None


def test_a_result_that_a_superseded_driver_wrote_all_the_same_is_never_read(
    bucket: Bucket,
) -> None:
    """It had read the lease, and was stopped for a minute before it wrote."""
    a_driver(bucket)
    newer = a_driver(bucket)
    assert run_result.adopt(newer) is None
    bucket.put("result/000001.json", DONE.model_dump_json(by_alias=True).encode())
    assert run_result.read(bucket) is None
    assert run_result.adopt(a_driver(bucket)) is None


def test_a_driver_that_is_superseded_as_it_writes_does_not_say_that_the_run_is_done(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, create = a_driver(bucket), Bucket.create

    def superseded(self: Bucket, key: str, content: bytes) -> bool:
        monkeypatch.setattr(Bucket, "create", create)
        assert run_result.adopt(a_driver(bucket)) is None
        return create(self, key, content)

    monkeypatch.setattr(Bucket, "create", superseded)
    with pytest.raises(Superseded, match="driver 2 holds the run; this is driver 1"):
        run_result.write(old, DONE)
    assert run_result.read(bucket) is None


def test_a_driver_that_ended_as_the_next_one_began_is_believed(bucket: Bucket) -> None:
    """The next one had read the results just before, and took the lease just after."""
    run_result.write(a_driver(bucket), DONE)
    newer = a_driver(bucket)
    assert run_result.adopt(newer) == DONE
    assert run_result.read(bucket) == DONE


def test_what_is_not_a_result_is_left_for_a_person_to_check(bucket: Bucket) -> None:
    a_driver(bucket)
    bucket.put("result/000001.json", b"{")
    with pytest.raises(StorageError, match="is not a result; remove it"):
        run_result.read(bucket)
