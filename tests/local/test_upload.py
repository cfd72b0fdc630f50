"""A checkpoint's files go from memory into the bucket, whole or not at all."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from safetensors.torch import load_file

from support.processes import wait_for
from support.s3 import S3Server
from trainingrun_runtime.checkpoints import upload
from trainingrun_runtime.checkpoints.tensor_files import TensorFile, whole
from trainingrun_runtime.store import bucket as bucket_module
from trainingrun_runtime.store import clients
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.manifest import digest_file
from trainingrun_runtime.store.storage_retry import StorageRetry

LARGE = 6_000_000  # numbers of four bytes: several parts, and a last one that is not full
FOLDER = "checkpoints/0001-000001/step-0000000007-1"
KEY = f"{FOLDER}/state.pt"


def never(message: str | None) -> None:
    raise AssertionError(message)


def stored(bucket: Bucket, key: str) -> bytes:
    return b"".join(bytes(piece) for piece in bucket.stream(key))


def test_what_is_uploaded_is_read_back_and_is_what_its_digests_say(
    bucket: Bucket, tmp_path: Path
) -> None:
    held = {
        "large": torch.rand(LARGE),
        "view": torch.rand(10, 10).T,
        "bits": torch.rand(11) > 0.5,
        "half": torch.rand(3, 3, 3).bfloat16(),
        "complex": torch.rand(3, dtype=torch.complex64),
        "step": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        **{f"medium.{number}": torch.rand(10_000) for number in range(300)},
        **{f"small.{number}": torch.tensor(float(number)) for number in range(300)},
    }
    rest = {"sparse": torch.eye(3).to_sparse(), "number": 7}
    parts = {name: whole(tensor) for name, tensor in held.items()}
    files = {"state-1.safetensors": TensorFile(parts), "random-1.pt": rest}
    upload.upload(bucket, FOLDER, files, 1, StorageRetry(never))

    contents = {name: stored(bucket, f"{FOLDER}/{name}") for name in files}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    found = load_file(tmp_path / "state-1.safetensors")
    assert found.keys() == held.keys()
    for name, tensor in held.items():
        assert found[name].dtype is tensor.dtype
        assert torch.equal(found[name], tensor)
        assert found[name].data_ptr() % tensor.element_size() == 0, "aligned"
    found = torch.load(tmp_path / "random-1.pt", weights_only=True)
    assert torch.equal(found["sparse"].to_dense(), torch.eye(3))
    assert found["number"] == 7
    assert json.loads(stored(bucket, f"{FOLDER}/{digest_file(1)}")) == {
        name: {"size": len(content), "blake3": blake3(content).hexdigest(), "mtime_ns": None}
        for name, content in contents.items()
    }


@pytest.mark.parametrize("size", [5, 3 * bucket_module._RANGE])
def test_what_was_not_written_to_its_end_is_not_there(bucket: Bucket, size: int) -> None:
    def fail_half_way() -> None:
        with bucket.writing("half", size) as append:
            append(bytes(size))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert bucket.size("half") is None


def test_what_was_not_written_to_its_end_leaves_no_parts(s3: S3Server) -> None:
    """A store keeps them, and bills them, and shows them in no list of objects."""
    bucket = Bucket.open("s3://runs/team/parts", s3.url, "us-east-1")
    of_uploads = s3.file(".sgwtmp/multipart")

    def parts() -> list[Path]:
        return [path for path in of_uploads.rglob("*") if path.name.isdigit()]

    def fail_half_way() -> None:
        written = 2 * bucket_module._AHEAD
        with bucket.writing("half", 2 * written * bucket_module._RANGE) as append:
            for _ in range(written):
                append(bytes(bucket_module._RANGE))
            # A part whose last byte arrives just before the abort is stored after it, also in S3.
            wait_for(lambda: len(parts()) == written)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert not parts()


@pytest.mark.parametrize("bucket", ["s3", "file"], indirect=True)  # a claim has no parts
def test_a_large_file_has_fewer_parts_than_a_store_takes(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def open_writer(store: Any, key: str, **how: Any) -> Any:
        asked.update(how)
        raise OSError("not opened")

    monkeypatch.setattr(bucket_module.obstore, "open_writer", open_writer)
    terabyte = 10**12
    with pytest.raises(Exception, match="not opened"), bucket.writing("large", terabyte):
        pass
    assert terabyte / asked["buffer_size"] < 9_500


def test_a_file_is_uploaded_anew_when_the_store_was_away_in_the_middle(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(clients.RETRIES, "max_retries", 0)
    # So that the error is raised while PyTorch writes, and not at the end.
    monkeypatch.setattr(bucket_module, "_AHEAD", 1)
    bucket = Bucket.open("s3://runs/team/away", s3.url, "us-east-1")
    writing = Bucket.writing
    reported: list[str | None] = []

    @contextmanager
    def stops(self: Bucket, key: str, size: int) -> Iterator[Callable[[bytes], object]]:
        with writing(self, key, size) as append:
            written = 0

            def stop_once(content: bytes) -> None:
                nonlocal written
                written += len(content)
                if written > 2 * LARGE and not reported and s3.running:
                    s3.stop()
                append(content)

            yield stop_once

    def start(seconds: float) -> None:
        s3.start()
        assert bucket.size(KEY) is None, "there is a half of it"

    monkeypatch.setattr(Bucket, "writing", stops)
    state = {"large": torch.rand(LARGE)}
    upload.upload(
        bucket, FOLDER, {"state.pt": state}, 0, StorageRetry(reported.append, sleep=start)
    )
    said, after = reported
    assert said is not None
    assert "cannot be reached" in said
    assert after is None
    digests = json.loads(stored(bucket, f"{FOLDER}/{digest_file(0)}"))
    assert blake3(stored(bucket, KEY)).hexdigest() == digests["state.pt"]["blake3"]
