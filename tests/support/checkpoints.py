"""Uploaded and committed checkpoints without a training."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from blake3 import blake3
from pyarrow.fs import PyFileSystem

from trainingrun_runtime.checkpoints import upload
from trainingrun_runtime.coordinator.checkpoints import UploadedCheckpoint
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.bucket_files import BucketFiles
from trainingrun_runtime.store.manifest import (
    FileDigest,
    Manifest,
    commit,
    digest_file,
    digest_folder,
)


def uploaded(bucket: Bucket, step: int, name: str | None = None) -> UploadedCheckpoint:
    """Upload a checkpoint of one file and its digest, as the one rank of driver 1 does."""
    path, content = f"checkpoints/0001-000001/{name or f'step-{step}'}", b"weights"
    digest = asdict(FileDigest(len(content), blake3(content).hexdigest()))
    bucket.put(f"{path}/state.pt", content)
    bucket.put(f"{path}/{digest_file(0)}", json.dumps({"state.pt": digest}).encode())
    return UploadedCheckpoint(f"{bucket.path}/{path}", step, 1, {}, ranks=(0,))


def saved(
    bucket: Bucket,
    folder: Path,
    step: int,
    fencing_token: int = 1,
    index: int = 1,
    **metrics: float,
) -> Manifest:
    """Upload a checkpoint of two files, and commit it."""
    local = folder / f"{fencing_token}-{index}"
    (local / "rank-0").mkdir(parents=True)
    (local / "rank-0" / "state.pt").write_bytes(f"weights of step {step}".encode() * 100)
    (local / "empty").write_bytes(b"")
    manifest = Manifest(
        path=f"checkpoints/0001-{fencing_token:06d}/step-{step:010d}-{index}",
        step=step,
        world_size=2,
        attempt=1,
        fencing_token=fencing_token,
        index=index,
        metrics=metrics,
        files=digest_folder(local),
        time=1000.0 + step,
    )
    for name in manifest.files:
        bucket.put(f"{manifest.path}/{name}", (local / name).read_bytes())
    commit(bucket, manifest)
    return manifest


def put(bucket: Bucket, folder: Path, step: int, index: int, **fields: Any) -> Manifest:
    """Commit the files of a folder as a checkpoint."""
    made = Manifest(
        path=f"checkpoints/0001-000001/step-{step:010d}-1",
        step=step,
        world_size=2,
        attempt=1,
        fencing_token=1,
        index=index,
        files=digest_folder(folder),
        time=1000.0,
        **fields,
    )
    for name in made.files:
        bucket.put(f"{made.path}/{name}", (folder / name).read_bytes())
    commit(bucket, made)
    return made


def write(files: Mapping[str, Any], folder: Path) -> None:
    """Write a rank's files of a checkpoint into a folder of this machine."""
    bucket = Bucket.open(folder.as_uri())
    for name, content in files.items():
        upload.write(bucket, name, content)


def as_pyarrow(bucket: Bucket) -> tuple[PyFileSystem, str]:
    """A run's folder as Ray gets it: `storage_filesystem` and `storage_path`."""
    return PyFileSystem(BucketFiles(bucket)), bucket.path
