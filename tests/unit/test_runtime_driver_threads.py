"""The driver's threads: none ends before the driver without anybody knowing."""

import shutil
import threading
from pathlib import Path

import pytest

from trainingrun_runtime.driver import background
from trainingrun_runtime.driver.background import Background
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease


def test_a_thread_that_an_error_has_ended_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_AGAIN_S", 0.01)
    begun: list[int] = []
    again = threading.Event()

    def work(ended: threading.Event) -> None:
        begun.append(len(begun))
        if len(begun) < 3:
            raise KeyError("no such suspension")
        again.set()
        ended.wait()

    running = Background()
    running.start(suspend=work)
    assert again.wait(30)
    running.join()
    assert begun == [0, 1, 2]


def test_a_thread_that_an_error_ends_with_the_driver_is_not_begun_again() -> None:
    begun: list[int] = []

    def work(ended: threading.Event) -> None:
        begun.append(1)
        ended.wait()
        raise RuntimeError("Ray is shut down")

    running = Background()
    running.start(losses=work)
    running.join()
    assert begun == [1]


def test_a_thread_that_is_done_is_not_begun_again() -> None:
    begun: list[int] = []
    running = Background()
    running.start(prestart=lambda _: begun.append(1))
    for thread in running._threads:
        thread.join(30)
    running.join()
    assert begun == [1]


def test_a_lease_that_somebody_deletes_is_missed_in_a_sentence_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing would be swept, and the run would not succeed, for a folder deleted once."""
    monkeypatch.setattr(background, "_CHECK_S", 0.01)
    monkeypatch.setattr(background, "_RENEW_S", 0.05)
    bucket = Bucket.open(f"file://{tmp_path}/run")
    lease = Lease.take(bucket, 1, "pod", 100)
    shutil.rmtree(tmp_path / "run")
    problems: list[str | None] = []
    ended, well = threading.Event(), threading.Event()

    def report(problem: str | None) -> None:
        problems.append(problem)
        if problem is None:
            well.set()

    running = threading.Thread(
        target=background.keep_lease, args=(lease, lambda: lease.renew(110), report, ended)
    )
    running.start()
    try:
        assert well.wait(30), problems
    finally:
        ended.set()
        running.join(30)
    assert "does not list lease/000001.json, which this run has written" in str(problems[0])
    lease.require()
