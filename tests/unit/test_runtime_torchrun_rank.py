"""A rank whose script runs in a process of its own attends to it whatever the store does."""

import os
import threading
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from trainingrun_runtime.coordinator.checkpoints import Command
from trainingrun_runtime.coordinator.scripts import GRACE_S, SAVING_S, Orders, Scripts, Told
from trainingrun_runtime.store.storage_errors import DeniedError
from trainingrun_runtime.worker import torchrun
from trainingrun_runtime.worker.torchrun import _Rank


class Store:
    """A run's folder whose store answers once it is told to."""

    def __init__(self) -> None:
        self.answers, self.done = threading.Event(), threading.Event()
        self.deleted: list[str] = []
        self.error: Exception | None = None

    def key_of(self, path: str) -> str:
        return path

    def delete_folder(self, path: str) -> None:
        try:
            assert self.answers.wait(10), "a rank waits for it"
            if self.error is not None:
                raise self.error
            self.deleted.append(path)
        finally:
            self.done.set()


@pytest.fixture
def store() -> Store:
    return Store()


def a_rank(monkeypatch: pytest.MonkeyPatch, store: Store, *orders: Orders) -> _Rank:
    """Rank 0, which gets these orders one after another, without Ray and without a script."""
    given = iter(orders)

    def script_told(group: int, rank: int, told: Told) -> Orders:
        return next(given)

    monkeypatch.setattr(torchrun.ray, "get", lambda answer: answer)
    monkeypatch.setattr(torchrun, "_path", lambda worker, number: f"folder-{number}")
    monkeypatch.setattr(torchrun, "_TELL_EVERY_S", 0.0)
    rank: Any = _Rank.__new__(_Rank)
    rank._worker = SimpleNamespace(
        rank=0,
        group=1,
        notice=None,
        bucket=store,
        storage_retry=lambda request: request(),
        coordinator=SimpleNamespace(
            script_told=SimpleNamespace(remote=script_told),
            script_runs=SimpleNamespace(remote=lambda *told: rank.named.append(told)),
        ),
    )
    rank.named = []  # the processes of which the coordinator was told
    rank._of_ray = SimpleNamespace(read=lambda: None)
    rank._place = SimpleNamespace(local_rank=1, beside=[0])  # another rank looks at the folder
    rank._script = SimpleNamespace(end=lambda: None, poll=lambda: None, process=lambda: None)
    rank._ended, rank._others, rank._uploads, rank._deletions = None, {}, None, []
    rank._asked, rank._told_process, rank._next_look = False, True, 0.0
    return rank  # type: ignore[no-any-return]


def test_a_rank_hears_of_a_preemption_while_a_discarded_upload_is_deleted(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    """It may have many files, and the store may be away for an hour."""
    leave = Orders(command=Command.CHECKPOINT_AND_EXIT)
    rank = a_rank(monkeypatch, store, Orders(unused=3), leave)
    assert rank._tell().unused == 3
    assert rank._tell() == leave
    assert store.deleted == []
    store.answers.set()
    assert store.done.wait(10)
    assert store.deleted == ["folder-3"]


def test_a_discarded_upload_that_cannot_be_deleted_does_not_end_the_training(
    monkeypatch: pytest.MonkeyPatch, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.error = DeniedError("access to s3://runs/run was denied (AccessDenied)")
    store.answers.set()
    rank = a_rank(monkeypatch, store, Orders(unused=3), Orders(over=True))
    rank.run()
    assert caplog.messages == [
        "what was uploaded of a discarded checkpoint is not deleted: access to s3://runs/run was "
        "denied (AccessDenied)"
    ]


def test_the_end_of_the_scripts_waits_for_a_deletion_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    """What is left is deleted by a later driver, and after the last one by nobody."""
    rank, waited = a_rank(monkeypatch, store, Orders(over=True)), list[float]()
    deletion: Any = SimpleNamespace(join=waited.append)
    rank._deletions = [deletion]
    rank.run()
    assert len(waited) == 1
    assert 0 < waited[0] <= torchrun._LAST_DELETIONS_S


def test_a_rank_whose_script_is_done_is_its_own_process_from_then_on(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    """Else a hang of another rank is one of a process that has ended, and nothing can end it."""
    rank: Any = a_rank(monkeypatch, store, Orders(), Orders(over=True))
    rank._script = SimpleNamespace(end=lambda: None, poll=lambda: 0, process=lambda: None)
    monkeypatch.setattr(torchrun, "_TELL_EVERY_S", 0.01)
    rank.run()
    assert rank.named == [(0, 1, os.getpid(), psutil.Process().create_time())]


@pytest.mark.parametrize("ahead_s", [-300.0, 300.0])
@pytest.mark.parametrize("notice_s", [None, 40.0], ids=["suspended", "its pod ends"])
def test_a_script_has_its_time_to_end_in_whatever_the_clock_of_its_node_says(
    monkeypatch: pytest.MonkeyPatch, store: Store, ahead_s: float, notice_s: float | None
) -> None:
    passed = [0.0]
    done: list[str] = []
    rank: Any = a_rank(monkeypatch, store)
    rank._script = SimpleNamespace(
        terminate=lambda: done.append("SIGTERM"), end=lambda: done.append("SIGKILL")
    )
    if notice_s is not None:
        rank._worker.notice = SimpleNamespace(deadline=5000.0 + ahead_s + notice_s)
    clock = SimpleNamespace(
        time=lambda: 5000.0 + ahead_s + passed[0], monotonic=lambda: 70.0 + passed[0]
    )
    monkeypatch.setattr(torchrun, "time", clock)
    scripts = Scripts()
    scripts.meet(1, 0, 1, "node", ("10.0.0.1", 29500))

    def tell(group: int, number: int, told: Told) -> Orders:
        return scripts.told(group, number, told, Command.CHECKPOINT_AND_EXIT, 5000.0 + passed[0])[0]

    rank._worker.coordinator.script_told = SimpleNamespace(remote=tell)
    limit_s = GRACE_S if notice_s is None else notice_s - SAVING_S
    for at, expected in (
        (0.0, ["SIGTERM"]),
        (limit_s - 1, ["SIGTERM"]),
        (limit_s, ["SIGTERM", "SIGKILL"]),
    ):
        passed[0] = at
        rank._leave(rank._tell())
        assert done == expected
