"""A notice: read whole or not at all, and handled at the right time."""

import os
import subprocess
import threading
import time

import pytest

from trainingrun_runtime.worker import preemption_notice
from trainingrun_runtime.worker.preemption_notice import (
    PreemptionNotice,
    PreemptionNoticeWatcher,
    checkpoint_at,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAININGRUN_STATE_DIRECTORY", str(tmp_path))
    return tmp_path


def test_a_pod_with_a_pre_stop_hook_makes_its_checkpoint_at_once():
    assert checkpoint_at(PreemptionNotice(deadline=1000.0, pre_stop=True), save_seconds=3.0) == 0.0


def test_a_node_that_stays_until_its_deadline_trains_on_until_shortly_before():
    assert (
        checkpoint_at(PreemptionNotice(deadline=1000.0, pre_stop=False), save_seconds=1.0) == 995.0
    )


def test_the_slower_the_checkpoints_the_earlier_the_last_one_begins():
    assert (
        checkpoint_at(PreemptionNotice(deadline=1000.0, pre_stop=False), save_seconds=20.0) == 960.0
    )


def test_the_hooks_file_becomes_a_notice(folder):
    answered = threading.Event()
    watcher = PreemptionNoticeWatcher(lambda notice: answered.set())
    watcher.start()
    (folder / "notice").write_text("2000000000\n")
    assert answered.wait(5)
    assert watcher.notice == PreemptionNotice(deadline=2000000000.0, pre_stop=True)
    watcher.stop()


def test_a_notice_that_is_not_written_yet_is_waited_for(folder):
    answered = threading.Event()
    (folder / "notice").touch()
    watcher = PreemptionNoticeWatcher(lambda notice: answered.set())
    watcher.start()
    assert not answered.wait(0.5)
    (folder / "notice").write_text("2000000000")
    assert answered.wait(5)
    watcher.stop()


def test_a_notice_whose_answer_fails_is_answered_again(folder, monkeypatch):
    monkeypatch.setattr(preemption_notice, "_AGAIN_S", 0.01)
    answered, tries = threading.Event(), []

    def answer(notice):
        tries.append(notice)
        if len(tries) < 3:
            raise ConnectionError("the coordinator restarts")
        answered.set()

    watcher = PreemptionNoticeWatcher(answer)
    watcher.start()
    (folder / "notice").write_text("2000000000")
    assert answered.wait(30)
    watcher.stop()


def test_a_notice_without_a_readable_time_still_counts(folder):
    watcher = PreemptionNoticeWatcher(lambda notice: None)
    (folder / "notice").write_text("soon")
    watcher.start()
    deadline = time.monotonic() + 5
    while watcher.notice is None and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert watcher.notice is not None
    watcher.stop()


def test_the_hook_finds_a_watcher_only_while_one_watches(folder):
    (folder / "watchers").mkdir()
    (folder / "watchers" / "1").touch()  # of another worker in the pod
    watcher = PreemptionNoticeWatcher(lambda notice: None)
    watcher.start()
    assert {entry.name for entry in (folder / "watchers").iterdir()} == {"1", str(os.getpid())}
    watcher.stop()
    assert {entry.name for entry in (folder / "watchers").iterdir()} == {"1"}


def test_a_watcher_that_was_killed_is_forgotten_before_its_process_id_is_used_again(folder):
    with subprocess.Popen(["true"]) as killed:
        killed.wait()
    (folder / "watchers").mkdir()
    (folder / "watchers" / str(killed.pid)).touch()
    watcher = PreemptionNoticeWatcher(lambda notice: None)
    watcher.start()
    assert {entry.name for entry in (folder / "watchers").iterdir()} == {str(os.getpid())}
    watcher.stop()


def test_saved_ends_the_hook(folder):
    PreemptionNoticeWatcher(lambda notice: None).confirm_saved()
    assert (folder / "saved").exists()
