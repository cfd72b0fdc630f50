"""A run's folder in Azure, by an account key as a Secret has it: in a real Azurite."""

import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray.train

from support.azurite import KEY, running_azurite
from support.binaries import skipping_unavailable
from trainingrun_protocol.contract import ContractCheckpoints
from trainingrun_runtime.driver.committer import digests
from trainingrun_runtime.ray_internals import training
from trainingrun_runtime.ray_internals.filesystem import RetryingCheckpoint, for_ray
from trainingrun_runtime.store import bucket as bucket_module
from trainingrun_runtime.store import retention
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.bucket_check import check
from trainingrun_runtime.store.lease import Lease, Superseded
from trainingrun_runtime.store.manifest import Manifest, commit, committed, digest_folder
from trainingrun_runtime.store.storage_retry import StorageRetry


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("azurite")
    with skipping_unavailable(), running_azurite(folder) as environment:
        yield environment


@pytest.fixture
def azure(
    account: dict[str, str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Bucket:
    for name, value in account.items():
        monkeypatch.setenv(name, value)
    return Bucket.open(f"az://runs/team/{request.node.name}")


def test_a_run_is_kept_and_swept(azure: Bucket, tmp_path: Path) -> None:
    check(azure)
    assert azure.list() == [], "the check leaves nothing"
    lease = Lease.take(azure, 1, "pod-a", 100)
    lease.renew(110)
    folder = tmp_path / "reported"
    (folder / "deep").mkdir(parents=True)
    (folder / "model.bin").write_bytes(os.urandom(2 * bucket_module._RANGE + 1))
    (folder / "deep" / "empty").write_bytes(b"")
    filesystem = pickle.loads(pickle.dumps(for_ray(azure)))
    assert KEY.encode() not in pickle.dumps(filesystem)
    storage = SimpleNamespace(storage_filesystem=filesystem)
    context = SimpleNamespace(storage_context=storage, get_world_rank=lambda: 0)
    for index in (1, 2, 3):
        path = f"checkpoints/0001-000001/{index}"
        checkpoint = ray.train.Checkpoint(str(folder))
        training._upload(context, checkpoint, f"{azure.path}/{path}", None)
        made = Manifest(
            path=path, step=index, world_size=1, attempt=1, fencing_token=1, index=index,
            files=digests(azure, path), time=100,
        )  # fmt: skip
        assert made.files == digest_folder(folder)
        commit(azure, made)
    dropped = retention.sweep(azure, 1, ContractCheckpoints(keep=2))
    assert [each.step for each in dropped] == [1]
    assert [each.step for each in committed(azure)] == [2, 3]
    assert azure.list("checkpoints/0001-000001/1") == []
    restored = RetryingCheckpoint(f"{azure.path}/checkpoints/0001-000001/3", filesystem)
    with restored.as_directory() as found:
        assert digest_folder(found) == digest_folder(folder)
    second = Lease.take(azure, 1, "pod-b", 120)
    assert second.fencing_token == 2
    with pytest.raises(Superseded):
        lease.require()


def test_of_takers_at_once_each_gets_another_fencing_token(azure: Bucket) -> None:
    with ThreadPoolExecutor(6) as pool:
        # As a driver does: Azure may refuse one of several requests for a moment (409).
        retry = StorageRetry(lambda _: None)
        takers = pool.map(lambda each: retry(lambda: Lease.take(azure, 1, f"{each}", 1)), range(6))
        leases = list(takers)
    assert sorted(lease.fencing_token for lease in leases) == [1, 2, 3, 4, 5, 6]


def test_a_delete_of_what_is_gone_deletes_the_rest(azure: Bucket) -> None:
    """As of two sweeps at once, or of one that is repeated after a lost answer."""
    keys = [f"checkpoints/0001-000001/one/{number:04d}" for number in range(300)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: azure.put(key, b"x"), keys[1::2]))
    azure.delete([*keys, "manifests/none.json"])
    assert azure.list() == []
    azure.delete_folder("checkpoints")
