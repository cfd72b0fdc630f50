"""A store that goes away costs time and nothing else: real Ray, and a real S3 that is stopped."""

import itertools
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.dies_in_a_step import DIES_AT
from support.disturbed_runs import Disturbed, drain
from support.local_runs import OUTAGE_S, Run
from support.s3 import CREDENTIALS, S3Server
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.contract import SUSPEND_FILE
from trainingrun_protocol.exit_codes import SUSPEND_EXIT_CODE
from trainingrun_protocol.progress import Progress, RecordKind, RunState
from trainingrun_runtime.store import manifest, run_result, verification
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.survivors.survivors import SAVE_S

pytestmark = pytest.mark.slow

LINEAR = "trainingrun_runtime.examples.linear:train"
_names = itertools.count(1)


@pytest.fixture
def a_run(
    ray: LocalRay, store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Run]]:
    """Makes runs of the linear example in a folder of the bucket."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    made: list[Run] = []

    def make(every_seconds: float = 300, **config: Any) -> Run:
        name = f"run-{next(_names)}"
        (tmp_path / name).mkdir()
        bucket = Bucket.open(f"s3://runs/{name}", store.url, "us-east-1")
        run = Run(ray, tmp_path / name, LINEAR, config, bucket, every_seconds=every_seconds)
        made.append(run)
        return run

    yield make
    store.stop()
    store.start()
    for run in made:
        run.stop()


def waits_for_storage(progress: Progress) -> bool:
    return progress.storage_error is not None


def out_for_a_while(run: Run, store: S3Server, since: Progress) -> None:
    """Return once the outage has lasted as long as it shall; then end it."""
    started = since.storage_error_since or since.time
    run.wait_until(lambda progress: progress.time - started >= OUTAGE_S)
    store.start()


@contextmanager
def commits_refused(run: Run, store: S3Server) -> Iterator[None]:
    """A file where the store needs the manifests' folder: files arrive, no commit does."""
    obstacle = store.file(f"{run.bucket.root.removeprefix('s3://runs/')}/manifests")
    aside = obstacle.with_name("aside")
    obstacle.rename(aside)
    obstacle.write_bytes(b"")
    yield
    obstacle.unlink()
    aside.rename(obstacle)


def with_a_checkpoint(a_run: Callable[..., Run], steps: int) -> Run:
    """A run that makes a checkpoint each second, once the first is committed."""
    run = a_run(steps=steps, step_seconds=0.1, every_seconds=1)
    run.start()
    run.wait_until(lambda progress: progress.checkpoint)
    return run


def test_an_outage_at_start_in_training_and_at_restore_costs_only_time(
    a_run: Callable[..., Run], store: S3Server
) -> None:
    undisturbed = a_run(steps=150)
    assert undisturbed.drive() == 0

    run = a_run(steps=150, step_seconds=0.1, every_seconds=1)
    store.stop()
    run.start()
    waiting = run.wait_until(waits_for_storage)
    assert waiting.state is RunState.STARTING
    assert "cannot be reached" in (waiting.storage_error or "")
    out_for_a_while(run, store, waiting)

    # In training: steps are done while no checkpoint can be made.
    run.wait_until(lambda progress: progress.step >= 20 and progress.checkpoint)
    store.stop()
    stuck = run.wait_until(waits_for_storage)
    assert stuck.state is RunState.TRAINING
    further = run.wait_until(lambda progress: progress.step >= stuck.step + 10)
    assert further.checkpoint == stuck.checkpoint

    # At restore: a training process that dies now begins again once there is a store.
    os.kill(run.training_process(), signal.SIGKILL)
    out_for_a_while(run, store, run.wait_until(lambda p: p.state is RunState.RECOVERING))

    assert run.wait() == 0, run.log()
    ended = run.progress()
    assert ended.storage_error is None
    assert {record.kind for record in ended.records} == {
        RecordKind.RESTORED,
        RecordKind.WORKER_LOST,
    }
    assert run.metrics()["weights_sha256"] == undisturbed.metrics()["weights_sha256"]


def test_an_outage_at_the_final_upload_is_waited_for(
    a_run: Callable[..., Run], store: S3Server
) -> None:
    run = a_run(steps=30, step_seconds=0.1)
    run.start()
    run.wait_until(lambda progress: progress.step >= 10)
    store.stop()
    out_for_a_while(run, store, run.wait_until(lambda p: p.step == 30 and waits_for_storage(p)))
    assert run.wait() == 0, run.log()
    assert_done_with_step(run, 30)


def test_a_failed_final_commit_is_repeated_before_the_run_is_done(
    a_run: Callable[..., Run], store: S3Server
) -> None:
    """The files arrive, their manifest does not: training is done, the run is not."""
    run = with_a_checkpoint(a_run, 30)
    with commits_refused(run, store):
        stuck = run.wait_until(lambda progress: progress.step == 30 and waits_for_storage(progress))
        run.wait_until(lambda progress: progress.time >= stuck.time + 3)
    assert run.wait() == 0, run.log()
    assert_done_with_step(run, 30)
    steps = [committed.step for committed in manifest.committed(run.bucket)]
    assert steps == sorted(steps)


def test_a_worker_lost_while_a_commit_waits_costs_only_time(
    a_run: Callable[..., Run], store: S3Server
) -> None:
    """The next worker group begins from the upload that is committed when the store is back."""
    run = with_a_checkpoint(a_run, 1000)
    with commits_refused(run, store):
        stuck = run.wait_until(waits_for_storage)
        os.kill(run.training_process(), signal.SIGKILL)
        run.wait_until(lambda progress: progress.state is RunState.RECOVERING)
        store.stop()
        out_for_a_while(run, store, stuck)
    went_on = run.wait_until(lambda progress: progress.step >= stuck.step + 50)
    restored = [r.step for r in went_on.records if r.kind is RecordKind.RESTORED]
    assert stuck.checkpoint is not None
    assert restored[-1] is not None
    assert restored[-1] > stuck.checkpoint.step, went_on.records


def test_a_rank_killed_in_a_long_outage_costs_no_step(
    ray: LocalRay, store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other rank holds the last step until the store answers, for longer than it may save."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    config = {"seed": 1, "norm": False}

    def a_disturbed(name: str, **more: Any) -> Disturbed:
        bucket = Bucket.open(f"s3://runs/{name}", store.url, "us-east-1")
        return Disturbed(ray, tmp_path / name, {**config, **more}, bucket=bucket)

    undisturbed = a_disturbed("undisturbed", undisturbed=True)
    assert undisturbed.drive() == 0, undisturbed.log()
    run = a_disturbed("disturbed", signals={"1": "SIGSTOP"})
    run.start()
    stopped = run.wait_until_stopped(1)
    store.stop()
    os.kill(stopped, signal.SIGKILL)
    lost = run.wait_until(waits_for_storage)
    run.wait_until(lambda progress: progress.time >= lost.time + SAVE_S + 10)
    store.start()
    assert run.wait() == 0, run.log()
    assert run.resumed() == [f"resumed from step {DIES_AT}, which rank 0 saved after the loss"]
    assert run.progress().seconds.lost_work == 0
    assert run.metrics()["weights_sha256"] == undisturbed.metrics()["weights_sha256"]


def test_a_node_lost_after_its_notice_in_a_long_outage_costs_no_step(
    a_run: Callable[..., Run], ray: LocalRay, store: S3Server, tmp_path: Path
) -> None:
    """All ranks have begun to save a step that the store does not take."""
    undisturbed = a_run(steps=100)
    assert undisturbed.drive() == 0, undisturbed.log()
    run = a_run(steps=100, step_seconds=0.1)
    run.start()
    run.wait_until(lambda progress: progress.step >= 10)
    store.stop()
    node = ray.workers[1]
    drain(ray, node, tmp_path / "drain.log")
    since = dict[int, float]()
    away = run.wait_until(lambda p: p.time - since.setdefault(p.step, p.time) >= 5)
    ray.remove(node)
    ray.add_worker()
    run.wait_until(lambda progress: progress.time >= away.time + SAVE_S + 15)
    store.start()
    assert run.wait() == 0, run.log()
    ended = run.progress()
    (restored,) = [r.message for r in ended.records if r.kind is RecordKind.RESTORED][1:]
    assert re.fullmatch(r"resumed from step \d+(, which rank \d saved after the loss)?", restored)
    assert ended.seconds.lost_work == 0
    assert run.metrics()["weights_sha256"] == undisturbed.metrics()["weights_sha256"]


def test_a_suspend_without_a_store_ends_with_the_checkpoint_committed(
    a_run: Callable[..., Run], store: S3Server
) -> None:
    run = a_run(steps=1000, step_seconds=0.1)
    run.start()
    run.wait_until(lambda progress: progress.step >= 10)
    store.stop()
    (run.state / SUSPEND_FILE).touch()
    out_for_a_while(run, store, run.wait_until(waits_for_storage))
    assert run.wait() == SUSPEND_EXIT_CODE, run.log()
    assert run.progress().state is RunState.SUSPENDED
    assert manifest.committed(run.bucket)[-1].step == run.progress().step


def assert_done_with_step(run: Run, step: int) -> None:
    found = run_result.read(run.bucket)
    assert found is not None
    assert found == run.progress().result
    last = manifest.committed(run.bucket)[-1]
    assert last.step == step
    assert found.checkpoint_uri == run.bucket.uri(last.path)
    assert verification.verify(run.bucket, last) is None
