"""What Ray uploads and restores, with an account key as a Secret has it: in a real Azurite."""

import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray.train

from support.azurite import KEY, running_azurite
from support.binaries import skipping_unavailable
from trainingrun_runtime.ray_internals import training
from trainingrun_runtime.ray_internals.filesystem import RetryingCheckpoint, for_ray
from trainingrun_runtime.store import bucket as bucket_module
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.manifest import digest_folder


def test_what_ray_uploads_it_restores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "reported"
    (folder / "deep").mkdir(parents=True)
    (folder / "model.bin").write_bytes(os.urandom(2 * bucket_module._RANGE + 1))
    (folder / "deep" / "empty").write_bytes(b"")
    with skipping_unavailable(), running_azurite(tmp_path) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        bucket = Bucket.open("az://runs/team/digits")
        packed = pickle.dumps(for_ray(bucket))
        assert KEY.encode() not in packed
        filesystem = pickle.loads(packed)
        storage = SimpleNamespace(storage_filesystem=filesystem)
        context = SimpleNamespace(storage_context=storage, get_world_rank=lambda: 0)
        path = f"{bucket.path}/checkpoints/0001-000001/1"
        training._upload(context, ray.train.Checkpoint(str(folder)), path, None)
        with RetryingCheckpoint(path, filesystem).as_directory() as restored:
            assert digest_folder(restored) == digest_folder(folder)
