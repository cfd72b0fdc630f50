"""At most one driver writes: the lease, in a real S3 server and on disk."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainingrun_runtime.store import loss_documents
from trainingrun_runtime.store.bucket import Bucket, StorageError
from trainingrun_runtime.store.lease import Lease, LossHistory, LostDriver, Superseded
from trainingrun_runtime.store.loss_documents import LossDocument
from trainingrun_runtime.store.storage_retry import StorageRetry


def test_takers_at_once_get_different_fencing_tokens(bucket: Bucket) -> None:
    takers = 6
    together = threading.Barrier(takers)

    def take(number: int) -> Lease:
        together.wait()
        # As a driver does: a store may refuse a taker for a moment, such as by 412 for an object
        # that it does not show yet.
        return StorageRetry(lambda _: None)(lambda: Lease.take(bucket, 1, f"pod-{number}", 100))

    with ThreadPoolExecutor(takers) as pool:
        leases = list(pool.map(take, range(takers)))
    assert sorted(lease.fencing_token for lease in leases) == list(range(1, takers + 1))
    *former, last = sorted(leases, key=lambda lease: lease.fencing_token)
    last.require()
    for lease in former:
        with pytest.raises(Superseded):
            lease.require()


def test_an_earlier_attempt_cannot_take_over_from_a_later_one(bucket: Bucket) -> None:
    later = Lease.take(bucket, 2, "pod-b", 100)
    with pytest.raises(Superseded, match="attempt 2 holds the run; this is attempt 1"):
        Lease.take(bucket, 1, "pod-a", 101)
    later.require()


def test_renewing_says_when_and_changes_nothing_else(bucket: Bucket) -> None:
    lease = Lease.take(bucket, 3, "pod-a", 100)
    lease.renew(160)
    document = json.loads(bucket.get("lease/000001.json") or b"")
    assert (document["attempt"], document["taken"], document["renewed"]) == (3, 100, 160)
    lease.require()


def test_each_driver_tells_the_next_one_how_often_the_run_was_lost(bucket: Bucket) -> None:
    first = Lease.take(bucket, 1, "pod-a", 100)
    assert first.history == LossHistory()
    first.history = LossHistory(losses=1, trained=60.5, unsaved=True)
    first.renew(160)
    second = Lease.take(bucket, 1, "pod-b", 170)
    assert second.history == LossHistory(losses=2, trained=60.5)
    third = Lease.take(bucket, 2, "pod-c", 180)  # the second one ended before it renewed its own
    assert third.history == LossHistory(losses=2, trained=60.5)


def test_a_driver_knows_whether_the_one_before_it_was_lost(bucket: Bucket) -> None:
    first = Lease.take(bucket, 1, "pod-a", 100)
    assert first.lost is None
    first.history = LossHistory(step=30, step_time=150.0)
    first.renew(160)
    second = Lease.take(bucket, 1, "pod-b", 170)
    assert second.lost == LostDriver(attempt=1, step=30, step_time=150.0, holder="pod-a")
    second.history = LossHistory(step=40, step_time=180.0, ended=True)
    second.renew(190)
    assert Lease.take(bucket, 2, "pod-c", 200).lost is None, "it has written its own losses"


def test_documents_of_losses_are_read_back_and_what_is_damaged_is_left_out(bucket: Bucket) -> None:
    document = LossDocument(attempt=1, fencing_token=2, number=3, reason="WorkerLost", time=100)
    loss_documents.write(bucket, document)
    later = document.model_copy(update={"lost_steps": 4, "message": "rank 0 died"})
    loss_documents.write(bucket, later)
    bucket.put("history/1-000002-4.json", b"{")
    assert list(loss_documents.read(bucket)) == [later]


def test_renewing_does_not_win_a_lost_lease_back(bucket: Bucket) -> None:
    old = Lease.take(bucket, 1, "pod-a", 100)
    Lease.take(bucket, 1, "pod-b", 101)
    old.renew(102)
    with pytest.raises(Superseded):
        old.require()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="truncated"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"attempt": null}', id="null attempt"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
        pytest.param(b'{"history": {"losses": []}}', id="odd history"),
    ],
)
def test_an_unreadable_lease_is_passed_over(bucket: Bucket, content: bytes) -> None:
    bucket.put("lease/000007.json", content)
    bucket.put("lease/notes.txt", b"not a lease")
    assert Lease.take(bucket, 1, "pod-a", 100).fencing_token == 8


def test_a_store_that_does_not_answer_is_not_a_lost_lease(s3: object) -> None:
    gone = Bucket.open("s3://runs/x", "http://127.0.0.1:1", "us-east-1")
    with pytest.raises(StorageError, match="cannot be reached"):
        Lease.take(gone, 1, "pod-a", 100)
    with pytest.raises(StorageError, match="cannot be reached"):
        Lease(gone, 1, 1, "pod-a", 100, "nonce").require()
