"""How long a checkpoint takes, which decides when a node with a deadline is left."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train import Checkpoint

from support.checkpoints import as_pyarrow
from trainingrun_runtime.checkpoints import upload as upload_module
from trainingrun_runtime.checkpoints.upload import CheckpointUpload
from trainingrun_runtime.session import saving as module
from trainingrun_runtime.session.saving import Saving
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.manifest import FileDigest
from trainingrun_runtime.store.storage_errors import UnreachableError
from trainingrun_runtime.store.storage_retry import StorageRetry


def test_the_upload_in_the_background_counts_as_time_of_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    saving = Saving.__new__(Saving)
    saving._save_seconds, saving._upload = 7.0, None
    assert saving.slowest_s() == 7
    saving._upload = CheckpointUpload(
        12, {}, Bucket.open(tmp_path.as_uri()), 0, StorageRetry(lambda message: None)
    )
    now[0] = 105
    assert saving.slowest_s() == 7
    now[0] = 140  # still under way, and slower than the last one by now
    assert saving.slowest_s() == 40
    saving._upload._empty.cleanup()


def test_an_outage_of_the_store_counts_as_time_of_the_checkpoint_until_it_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With `everySeconds: auto` the next ones would be made up to an hour apart."""
    now, tries, bucket = [100.0], list[str](), Bucket.open(tmp_path.as_uri())
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    stored = SimpleNamespace(path=str(tmp_path / "step-12"), filesystem=as_pyarrow(bucket)[0])
    monkeypatch.setattr(upload_module.training, "stored", lambda name: stored)

    def write(self: Bucket, key: str, content: Any) -> FileDigest:
        tries.append(key)
        now[0] += 20  # until all is sent, or until the client gives up
        if key.endswith("b.pt") and len(tries) < 5:
            raise UnreachableError("the store cannot be reached")
        return FileDigest(1, "0" * 64)

    def wait(seconds: float) -> None:
        now[0] += 100
        assert saving.slowest_s() == now[0] - 100

    monkeypatch.setattr(upload_module, "write", write)
    files = {name: {"objects": {}} for name in ("a.pt", "b.pt")}
    upload = CheckpointUpload(12, files, bucket, 0, StorageRetry(lambda message: None, wait))
    saving = Saving.__new__(Saving)
    saving._save_seconds, saving._upload = 7.0, upload
    upload(Checkpoint(upload.folder), "step-12")
    assert (len(tries), now[0]) == (5, 100 + 5 * 20 + 3 * 100)
    assert saving.slowest_s() == 2 * 20, "of the tries that succeeded"
