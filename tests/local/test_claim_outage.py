"""A claim whose server never answers costs time and nothing else: real Ray, and a real mount."""

from pathlib import Path

import pytest

from support import mounts
from support.binaries import skipping_unavailable
from support.local_runs import Run, two_workers
from trainingrun_protocol.contract import CLAIM_FOLDERS_ENV
from trainingrun_runtime.store.bucket import Bucket

pytestmark = pytest.mark.slow

LINEAR = "trainingrun_runtime.examples.linear:train"
STEPS = 100


def test_a_mount_that_hangs_in_training_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume, place = tmp_path / "volume", tmp_path / "place"
    for folder in (volume / "lost+found", place, *(tmp_path / name for name in ("ray", "a", "b"))):
        folder.mkdir(parents=True)
    where = {CLAIM_FOLDERS_ENV: f"runs={place}"}
    monkeypatch.setenv(CLAIM_FOLDERS_ENV, where[CLAIM_FOLDERS_ENV])
    with (
        skipping_unavailable(),
        mounts.mounted(volume, place),
        two_workers(tmp_path / "ray", **where) as ray,
    ):
        whole = Run(ray, tmp_path / "a", LINEAR, {"steps": STEPS}, Bucket.open("pvc://runs/a"))
        assert whole.drive() == 0, whole.log()
        config = {"steps": STEPS, "step_seconds": 0.2}
        bucket = Bucket.open("pvc://runs/b")
        run = Run(ray, tmp_path / "b", LINEAR, config, bucket, every_seconds=1)
        try:
            run.start()
            run.wait_until(lambda progress: progress.checkpoint)
            with mounts.failing(place, None):  # over the one that answers
                waiting = run.wait_until(lambda progress: progress.storage_error)
                assert "does not answer (no answer)" in (waiting.storage_error or "")
                later = run.wait_until(lambda progress: progress.step == STEPS)
                assert later.checkpoint is not None
                assert later.checkpoint.step < STEPS
            assert run.wait() == 0, run.log()
            assert run.metrics() == whole.metrics()
            assert run.progress().checkpoint.step == STEPS
        finally:
            run.stop()
