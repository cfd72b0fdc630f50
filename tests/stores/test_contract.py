"""What a run needs of its store, driven on a real server of each kind.

`make test` has five of them, `make test-stores` all.
"""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.stores import FAULTS, QUICK, SERVERS, Store
from trainingrun_protocol.contract import ContractCheckpoints
from trainingrun_runtime.store import retention
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.bucket_check import check
from trainingrun_runtime.store.lease import Lease, Superseded
from trainingrun_runtime.store.manifest import FileDigest, Manifest, commit, committed
from trainingrun_runtime.store.storage_errors import StorageError
from trainingrun_runtime.store.storage_retry import StorageRetry

RACES, CONTENDERS = 10, 12
_quick = {name: () if name in QUICK else pytest.mark.slow for name in SERVERS}
_each = [pytest.param(name, marks=marks) for name, marks in _quick.items()]
_every = pytest.mark.parametrize("server", _each, indirect=True)
_holding = pytest.mark.parametrize(
    "server", [each for each in _each if each.values[0] not in FAULTS], indirect=True
)


@pytest.fixture
def bucket(store: Store, tmp_path: Path) -> Bucket:
    """An empty folder of the server."""
    return Bucket.open(f"{store.uri}/team/{tmp_path.name}", store.endpoint)


@_every
def test_the_check_accepts_what_holds_the_contract_and_names_the_fault_of_the_others(
    server: tuple[str, Store], bucket: Bucket
) -> None:
    name, _ = server
    if name in FAULTS:
        with pytest.raises(StorageError, match=re.escape(FAULTS[name])):
            check(bucket)
    else:
        check(bucket)
        assert bucket.list() == [], "the check leaves nothing"


@_holding
def test_of_many_who_create_an_object_one_wins(bucket: Bucket) -> None:
    assert bucket.create("lease/1", b"mine")
    assert not bucket.create("lease/1", b"yours")
    assert bucket.get("lease/1") == b"mine"
    for race in range(RACES):
        key = f"lease/race-{race}"
        gate = threading.Barrier(CONTENDERS)

        def contend(number: int, key: str = key, gate: threading.Barrier = gate) -> bool:
            gate.wait(60)
            # As callers do: a store may refuse one of several requests for a moment.
            return StorageRetry(lambda _: None)(lambda: bucket.create(key, f"{number}".encode()))

        with ThreadPoolExecutor(CONTENDERS) as pool:
            won = list(pool.map(contend, range(CONTENDERS)))
        assert won.count(True) == 1
        assert bucket.get(key) == f"{won.index(True)}".encode()


@_holding
def test_a_lease_is_taken_renewed_and_superseded(bucket: Bucket) -> None:
    first = Lease.take(bucket, 1, "pod-a", 100)
    first.renew(110)
    first.require()
    second = Lease.take(bucket, 2, "pod-b", 120)
    assert second.fencing_token == 2
    second.require()
    with pytest.raises(Superseded):
        first.require()
    with pytest.raises(Superseded):
        Lease.take(bucket, 1, "pod-c", 130)


@_holding
def test_checkpoints_are_committed_and_the_oldest_is_swept(bucket: Bucket) -> None:
    Lease.take(bucket, 1, "pod-a", 100)
    for index in (1, 2, 3):
        path = f"checkpoints/0001-000001/{index}"
        bucket.put(f"{path}/model.bin", b"weights")
        commit(bucket, _a_manifest(path, index))
    with pytest.raises(StorageError):
        commit(bucket, _a_manifest("checkpoints/0001-000001/other", 3))
    dropped = retention.sweep(bucket, 1, ContractCheckpoints(keep=2))
    assert [each.step for each in dropped] == [1]
    assert [each.step for each in committed(bucket)] == [2, 3]
    assert bucket.list("checkpoints/0001-000001/1") == []


@_holding
def test_a_list_of_2500_is_whole_and_missing_keys_do_not_stop_a_delete(bucket: Bucket) -> None:
    keys = [f"checkpoints/one/{number:05d}" for number in range(2500)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: bucket.put(key, b"x"), keys))
    assert [entry.key for entry in bucket.list("checkpoints")] == keys
    bucket.delete([*keys, "manifests/none", "checkpoints/one/99999"])
    assert bucket.list() == []
    bucket.delete_folder("checkpoints")


@_holding
def test_ranges_and_empty_objects_are_read(bucket: Bucket) -> None:
    content = bytes(range(256)) * 80_000  # more than two ranges of `stream`
    with bucket.writing("large", len(content)) as append:
        append(content)
    assert bytes(bucket.read("large", 256, 512)) == bytes(range(256))
    assert b"".join(bucket.stream("large")) == content
    bucket.put("empty", b"")
    assert (bucket.get("empty"), bucket.size("empty"), bucket.get("none")) == (b"", 0, None)
    assert list(bucket.stream("empty")) == []


@pytest.mark.parametrize("name", ["a b", "a+b", "a%b", "a%20b", "aüb"])
@_holding
def test_odd_names_come_back_as_written(bucket: Bucket, name: str) -> None:
    bucket.put(f"odd/{name}/x", name.encode())
    assert [entry.key for entry in bucket.list("odd")] == [f"odd/{name}/x"]
    assert bucket.get(f"odd/{name}/x") == name.encode()
    bucket.delete([f"odd/{name}/x"])
    assert bucket.list("odd") == []


def _a_manifest(path: str, index: int) -> Manifest:
    blake3 = "9e5a9b6f" * 8
    return Manifest(
        path=path, step=index, world_size=1, attempt=1, fencing_token=1, index=index,
        files={"model.bin": FileDigest(7, blake3)}, time=100,
    )  # fmt: skip
