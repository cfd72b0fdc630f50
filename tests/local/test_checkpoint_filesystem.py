"""The bucket as Ray gets it: Ray's own bookkeeping never needs the store."""

import hashlib
import pickle
import threading
from pathlib import Path

import pytest
from pyarrow import fs
from ray.train import CheckpointConfig
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.storage import StorageContext

from support.s3 import S3Server, running_s3
from trainingrun_runtime.checkpoints.checkpoint_files import offered
from trainingrun_runtime.ray_internals.filesystem import RetryingCheckpoint, behind, for_ray
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.manifest import FileDigest, Manifest
from trainingrun_runtime.store.storage_errors import StorageError


def ray_storage(bucket: Bucket) -> StorageContext:
    inner, root = bucket.pyarrow()
    return StorageContext(f"{root}/checkpoints", "0001-000001", for_ray(inner))


def test_ray_starts_and_takes_its_notes_without_a_store(s3: S3Server) -> None:
    away = Bucket.open("s3://runs/x", "http://127.0.0.1:1", "us-east-1")
    storage = ray_storage(away)
    storage._check_validation_file()
    manager = CheckpointManager(CheckpointConfig(), storage)
    manager._write_state_to_storage()
    manager._maybe_load_state_from_storage()


def test_ray_leaves_nothing_of_its_own_in_the_bucket(bucket: Bucket) -> None:
    storage = ray_storage(bucket)
    CheckpointManager(CheckpointConfig(), storage)._write_state_to_storage()
    assert bucket.list() == []


def test_checkpoints_pass_through_and_come_back(bucket: Bucket, tmp_path: Path) -> None:
    filesystem = pickle.loads(pickle.dumps(ray_storage(bucket).storage_filesystem))
    inner, root = bucket.pyarrow()
    assert filesystem == for_ray(inner)
    assert behind(filesystem) == inner
    local = tmp_path / "made" / "rank-0"
    local.mkdir(parents=True)
    (local / "weights").write_bytes(b"weights" * 1000)
    path = f"{root}/checkpoints/one"
    fs.copy_files(
        str(local.parent), path, source_filesystem=fs.LocalFileSystem(),
        destination_filesystem=filesystem, use_threads=False,
    )  # fmt: skip
    checkpoint = pickle.loads(pickle.dumps(RetryingCheckpoint(path, filesystem)))
    with checkpoint.as_directory() as folder:
        assert Path(folder, "rank-0", "weights").read_bytes() == b"weights" * 1000
    found = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    assert [info.base_name for info in found if info.is_file] == ["weights"]
    filesystem.delete_dir(path)
    assert bucket.list("checkpoints/one") == []


def test_a_restore_waits_for_a_store_that_is_away(s3: S3Server, tmp_path: Path) -> None:
    content = b"weights" * 1000
    with running_s3(tmp_path) as server:
        bucket = Bucket.open("s3://runs/x", server.url, "us-east-1")
        bucket.put("checkpoints/one/weights", content)
        digest = FileDigest(len(content), hashlib.sha256(content).hexdigest())
        committed = Manifest(
            path="checkpoints/one", step=1, world_size=1, attempt=1, fencing_token=1, index=1,
            files={"weights": digest}, time=0,
        )  # fmt: skip
        path, filesystem = offered(bucket, committed)
        server.stop()
        late = threading.Timer(3.0, server.start)
        late.start()
        with RetryingCheckpoint(path, filesystem).as_directory() as folder:
            assert Path(folder, "weights").read_bytes() == content
            assert server.running
        late.join()
        bucket.put("checkpoints/one/weights", b"another".ljust(len(content)))
        with pytest.raises(StorageError, match="not as committed"):
            RetryingCheckpoint(path, filesystem).to_directory(str(tmp_path / "torn"))


def test_a_checkpoint_that_is_gone_is_the_stores_fault(bucket: Bucket) -> None:
    inner, root = bucket.pyarrow()
    gone = RetryingCheckpoint(f"{root}/checkpoints/gone", for_ray(inner))
    with pytest.raises(StorageError, match="is gone"):
        gone.to_directory()
