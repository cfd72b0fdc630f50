"""The bucket as Ray gets it: Ray's own bookkeeping never needs the store."""

import multiprocessing
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from pyarrow import fs
from ray.train import CheckpointConfig
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.storage import StorageContext
from ray.train.v2._internal.execution.training_report import _TrainingReport

from support.checkpoints import as_pyarrow
from support.s3 import S3Server, running_s3
from trainingrun_runtime.checkpoints.checkpoint_files import offered
from trainingrun_runtime.driver.report_callback import CoordinatorReports
from trainingrun_runtime.ray_internals.filesystem import RetryingCheckpoint, for_ray
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.bucket_files import bucket_of
from trainingrun_runtime.store.manifest import FileDigest, Manifest
from trainingrun_runtime.store.storage_errors import StorageError


def ray_storage(bucket: Bucket) -> StorageContext:
    return StorageContext(f"{bucket.path}/checkpoints", "0001-000001", for_ray(bucket))


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


@pytest.mark.parametrize("value", [os.fsdecode(b"m\xe4dchen.wav"), np.float32(0.5), b"\xe4"])
def test_rays_controller_registers_a_checkpoint_with_any_metric(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    """Ray's own notes are JSON of all metrics, and what JSON cannot hold would end each group."""
    monkeypatch.setattr(
        CheckpointManager, "_write_state_to_storage", CheckpointManager._write_state_to_storage
    )
    storage = ray_storage(bucket)
    CoordinatorReports(None).after_controller_start(None)
    manager = CheckpointManager(CheckpointConfig(), storage)
    manager._notify = lambda: None
    path = storage.build_checkpoint_path_from_name("step-1")
    checkpoint = RetryingCheckpoint(path, storage.storage_filesystem)
    manager.after_report(_TrainingReport(checkpoint, {"value": value}, False), [])
    assert manager.latest_checkpoint_result.metrics == {"value": value}


def test_checkpoints_pass_through_and_come_back(bucket: Bucket, tmp_path: Path) -> None:
    filesystem = pickle.loads(pickle.dumps(ray_storage(bucket).storage_filesystem))
    assert filesystem == for_ray(bucket)
    assert bucket_of(filesystem).root == bucket.root
    local = tmp_path / "made" / "rank-0"
    local.mkdir(parents=True)
    (local / "weights").write_bytes(b"weights" * 1000)
    path = f"{bucket.path}/checkpoints/one"
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
        digest = FileDigest(len(content), blake3(content).hexdigest())
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
    gone = RetryingCheckpoint(f"{bucket.path}/checkpoints/gone", for_ray(bucket))
    with pytest.raises(StorageError, match="is gone"):
        gone.to_directory()


def read_in_forked(filesystem: fs.FileSystem, path: str) -> str:
    """What a forked process finds there."""
    here, there = multiprocessing.get_context("fork").Pipe()

    def read() -> None:
        try:
            there.send(filesystem.open_input_stream(path).read().decode())
        except RuntimeError as error:
            there.send(str(error))

    process = multiprocessing.get_context("fork").Process(target=read)
    process.start()
    try:
        assert here.poll(30), "it waits for an answer for ever"
        return str(here.recv())
    finally:
        process.kill()
        process.join()


def test_a_forked_process_that_would_wait_for_ever_says_so(bucket: Bucket) -> None:
    """The client's threads are not in it."""
    bucket.put("checkpoints/one/weights", b"weights")
    filesystem, root = as_pyarrow(bucket)
    said = read_in_forked(filesystem, f"{root}/checkpoints/one/weights")
    if bucket.root.startswith("pvc:"):
        assert said == "weights", "a mount has no client"
        return
    assert "start it by spawn or forkserver" in said


def test_a_file_that_is_not_closed_is_not_there(bucket: Bucket) -> None:
    filesystem, root = as_pyarrow(bucket)
    file = filesystem.open_output_stream(f"{root}/checkpoints/half")
    file.write(b"half")
    del file
    assert bucket.list("checkpoints") == []


def test_files_are_listed_read_copied_moved_and_deleted_as_elsewhere(bucket: Bucket) -> None:
    filesystem, root = as_pyarrow(bucket)
    names = ["a", "deep/er/b", "deep/c", "odd [1]*?#~%20 = é", "empty"]
    for name in names:
        with filesystem.open_output_stream(f"{root}/x/{name}") as file:
            file.write(b"" if name == "empty" else name.encode())
    found = filesystem.get_file_info(fs.FileSelector(f"{root}/x", recursive=True))
    assert sorted(each.path for each in found if each.is_file) == sorted(
        f"{root}/x/{name}" for name in names
    )
    assert {each.path for each in found if not each.is_file} == {
        f"{root}/x/deep",
        f"{root}/x/deep/er",
    }
    first = filesystem.get_file_info(fs.FileSelector(f"{root}/x"))
    assert sorted(each.base_name for each in first) == sorted([*names[:1], "deep", *names[3:]])
    kinds = [each.type.name for each in filesystem.get_file_info(
        [f"{root}/x/a", f"{root}/x/deep", f"{root}/x/none", root]
    )]  # fmt: skip
    assert kinds == ["File", "Directory", "NotFound", "Directory"]
    filesystem.copy_file(f"{root}/x/deep/c", f"{root}/x/copy")
    filesystem.move(f"{root}/x/copy", f"{root}/x/moved")
    with filesystem.open_input_file(f"{root}/x/moved") as file:
        assert (file.size(), file.read(), file.read_at(2, 4)) == (6, b"deep/c", b"/c")
    assert filesystem.open_input_stream(f"{root}/x/empty").read() == b""
    filesystem.delete_file(f"{root}/x/moved")
    filesystem.delete_dir(f"{root}/x/deep")
    assert {entry.key for entry in bucket.list("x")} == {f"x/{n}" for n in names if "/" not in n}
    for gone in (f"{root}/x/none", f"{root}/x/moved"):
        for use in ("open_input_stream", "open_input_file", "delete_file"):
            with pytest.raises(FileNotFoundError):
                getattr(filesystem, use)(gone)
    with pytest.raises(FileNotFoundError):
        filesystem.get_file_info(fs.FileSelector(f"{root}/none"))


def test_nothing_outside_the_runs_folder_is_touched(bucket: Bucket) -> None:
    filesystem, root = as_pyarrow(bucket)
    for outside in (f"{root}2/x", "elsewhere/x", f"{root}/../x"):
        with pytest.raises((PermissionError, ValueError)):
            filesystem.open_output_stream(outside)
    with pytest.raises(ValueError, match="not a folder below"):
        filesystem.delete_dir(root)
