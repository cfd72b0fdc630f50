"""A claim on NFS, as two nodes see it: run on node `a` of `support.nfs_init`, by `test_nfs.py`."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from support.nfs_init import EXPORTED, SERVER, call, run
from support.processes import wait_for
from trainingrun_runtime.store import claims
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.bucket_check import check
from trainingrun_runtime.store.lease import Lease, Superseded
from trainingrun_runtime.store.storage_errors import (
    DeniedError,
    StorageError,
    StoreFullError,
    UnreachableError,
)

KEYS = 40


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Bucket:
    """A run's folder on the claim."""
    found = Bucket.open(f"pvc://runs/{request.node.originalname}")
    check(found)
    return found


def test_of_two_nodes_one_creates_each_object(bucket: Bucket) -> None:
    for number in range(KEYS):
        key, gate, won = f"lease/{number}", threading.Barrier(2), []

        def there(key: str = key, gate: threading.Barrier = gate, won: list[str] = won) -> None:
            gate.wait(60)
            if call("b", bucket.create, key, b"b"):
                won.append("b")

        thread = threading.Thread(target=there)
        thread.start()
        gate.wait(60)
        if bucket.create(key, b"a"):
            won.append("a")
        thread.join()
        assert len(won) == 1
        assert bucket.get(key) == call("b", bucket.get, key) == won[0].encode()


def test_what_one_node_writes_the_other_sees_at_once_though_its_cache_had_something_else(
    bucket: Bucket,
) -> None:
    for number in range(KEYS):
        key = f"manifests/{number}/m"
        assert bucket.get(key) is None
        assert bucket.list(f"manifests/{number}") == []
        call("b", bucket.put, key, b"first")
        assert bucket.get(key) == b"first"
        assert [entry.key for entry in bucket.list(f"manifests/{number}")] == [key]
        call("b", bucket.put, key, b"another one")
        assert bucket.size(key) == len(b"another one")
        assert bucket.get(key) == b"another one"
        assert bytes(bucket.read(key, 8, 11)) == b"one"
        with Path(bucket.path, key).open("rb"):  # its handle is in the cache, and opened by that
            call("b", bucket.put, key, b"the third")
            assert bucket.size(key) == len(b"the third")
            assert bucket.get(key) == b"the third"
        call("b", bucket.delete, [key])
        assert bucket.get(key) is None
        assert bucket.size(key) is None


def test_a_driver_on_another_node_supersedes_the_first_one_at_once(bucket: Bucket) -> None:
    first = Lease.take(bucket, 1, "pod-a", 100)
    first.require()
    call("b", Lease.take, bucket, 2, "pod-b", 110)
    with pytest.raises(Superseded):
        first.require()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that wait for two seconds."""
    monkeypatch.setattr(claims, "_LIMIT_S", 2.0)
    monkeypatch.setattr(claims, "_DATA_LIMIT_S", 2.0)


def test_a_server_that_is_away_costs_only_time(bucket: Bucket, impatient: None) -> None:
    lease = Lease.take(bucket, 1, "pod-a", 100)
    call(SERVER, run, "rpc.nfsd", "0")
    try:
        for ask in (lease.require, lambda: bucket.put("a", b"x"), lambda: bucket.list("lease")):
            with pytest.raises(UnreachableError, match="does not answer"):
                ask()
    finally:
        call(SERVER, run, "rpc.nfsd", "4")
    wait_for(lambda: _does(bucket.list))
    lease.require()
    assert bucket.get("a") is None, "a write that was given up has no effect"
    bucket.put("a", b"y")
    assert call("b", bucket.get, "a") == b"y"


def _does(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except StorageError:
        return False
    return True


def test_handles_of_an_export_that_is_gone_are_no_absence(bucket: Bucket, impatient: None) -> None:
    bucket.put("lease/1", b"x")
    call(SERVER, run, "exportfs", "-ua")
    try:
        for ask in (lambda: bucket.get("lease/1"), lambda: bucket.get("none"), bucket.list):
            with pytest.raises(DeniedError, match="may not use"):
                ask()
    finally:
        call(SERVER, run, "exportfs", "-a")
    wait_for(lambda: _does(bucket.list))
    assert bucket.get("lease/1") == b"x"


def test_an_export_that_is_read_only_is_said(bucket: Bucket) -> None:
    call(SERVER, run, "exportfs", "-o", "ro,fsid=0,insecure,no_subtree_check", f"*:{EXPORTED}")
    try:
        with pytest.raises(DeniedError, match="is mounted read-only"):
            bucket.put("a", b"x")
    finally:
        call(SERVER, run, "exportfs", "-ra")
    bucket.put("a", b"x")


def test_a_full_export_is_said_and_what_did_not_fit_is_gone(bucket: Bucket) -> None:
    with pytest.raises(StoreFullError):
        bucket.upload("large", bytes(80 * 2**20))
    assert bucket.list() == []
    wait_for(
        lambda: _does(lambda: bucket.put("a", b"x"))
    )  # the server closes a file some time later
