"""How long a checkpoint takes, which decides when a node with a deadline is left."""

from pathlib import Path

import pytest

from trainingrun_runtime.checkpoints.upload import CheckpointUpload
from trainingrun_runtime.session import saving as module
from trainingrun_runtime.session.saving import Saving
from trainingrun_runtime.store.bucket import Bucket
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
