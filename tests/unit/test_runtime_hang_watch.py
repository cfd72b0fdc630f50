"""The driver's look for hangs: what it does itself is neither silence nor work."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.processes import wait_for
from trainingrun_protocol.contract import STACKS_REQUEST_FILE, ContractHang
from trainingrun_runtime.coordinator.hangs import Hangs
from trainingrun_runtime.coordinator.rank_comparison import RankPlace
from trainingrun_runtime.coordinator.ranks import Member, RankProcess
from trainingrun_runtime.hangs import hang_watch
from trainingrun_runtime.hangs.hang_watch import HangWatch
from trainingrun_runtime.hangs.rank_stacks import RankStack, State

HANG = ContractHang(after_seconds=60)
STACK = RankStack(State.LIVES, text="where it stands\n")


class Remote:
    """A method of an actor, that is called at once."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.remote = method


class Head:
    """The head's pod: its clock, the coordinator's part for hangs, and the driver's watch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
        self.now, self.reads, self.ended = 0.0, 0, 0
        self.hangs = Hangs(HANG, lambda: self.now)
        self.hangs.begin(1, 0)
        self.found: list[float] = []
        self.tell: Callable[..., None] = self.hangs.hung
        coordinator = SimpleNamespace(
            silence=Remote(self.hangs.silence),
            members=Remote(self._members),
            hung=Remote(self._hung),
            stuck=Remote(self.hangs.stuck),
        )
        monkeypatch.setattr(hang_watch.ray, "get", lambda answer, timeout=None: answer)
        monkeypatch.setattr(hang_watch, "state_directory", lambda: state)
        contract: Any = SimpleNamespace(attempt=1, hang=HANG, trial=None)
        self.written = threading.Event()
        self.bucket: Any = SimpleNamespace(
            uri=lambda key: f"s3://runs/x/{key}", put=self._put, list=lambda prefix: []
        )
        self.stacks_take_s, self.store_answers = 0, threading.Event()
        self.store_answers.set()
        self.watch = HangWatch(coordinator, contract, self.bucket)
        monkeypatch.setattr(self.watch, "_attend", lambda members: None)
        monkeypatch.setattr(self.watch, "_stacks", self._stacks)
        monkeypatch.setattr(self.watch, "_end", self._end)

    def pass_time(self, seconds: int) -> None:
        """The coordinator's process runs meanwhile."""
        for _ in range(seconds):
            self.now += 1.0
            self.hangs.runs()

    def look(self, times: int) -> None:
        for _ in range(times):
            self.pass_time(1)
            self.watch._look()

    def _members(self) -> dict[int, Member]:
        return {0: Member(RankProcess(b"", 1, 1.0), RankPlace("r0", "node-0", "pod-0"))}

    def _stacks(self, members: dict[int, Member]) -> dict[int, RankStack | None]:
        self.reads += 1
        self.pass_time(self.stacks_take_s)
        return {0: STACK}

    def _hung(self, *arguments: Any) -> None:
        self.tell(*arguments)
        self.found.append(self.now)

    def _end(self, members: dict[int, Member]) -> None:
        self.ended += 1

    def _put(self, key: str, content: bytes) -> None:
        self.store_answers.wait(30)
        self.written.set()


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Head:
    return Head(monkeypatch, tmp_path)


def test_the_pod_of_a_process_that_cannot_be_ended_is_told_to_the_operator(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(members: dict[int, Member]) -> None:
        head.watch._ended = time.monotonic() - hang_watch.ENDS_S - 1, members

    monkeypatch.setattr(head.watch, "_end", end)
    head.look(70)
    assert head.found
    assert head.hangs.fields()["stuck_pods"] == ["pod-0"]


@pytest.mark.parametrize("seconds", [2, 9, 11, 17, 45])
def test_a_hang_is_found_however_long_its_stacks_take(head: Head, seconds: int) -> None:
    """As with a node that does not answer, or many ranks on one."""
    head.stacks_take_s = seconds
    head.look(200)
    assert head.found == [60.0 + seconds]
    assert (head.reads, head.ended) == (1, 1)


def test_a_slow_store_delays_neither_the_count_nor_the_next_look(
    head: Head, tmp_path: Path
) -> None:
    """Somebody asks for the stacks of a training that hangs, and the store does not answer."""
    request = tmp_path / STACKS_REQUEST_FILE
    head.look(30)
    head.store_answers.clear()
    request.touch()
    head.stacks_take_s = 14
    head.look(1)
    assert request.exists(), "who has asked waits for what is written"
    head.look(40)
    assert head.found
    assert head.reads == 2, "on request, and of the hang"
    head.store_answers.set()
    assert head.written.wait(30)
    wait_for(lambda: not request.exists())


def test_a_hang_that_could_not_be_told_is_found_again(head: Head) -> None:
    def fails(*_: Any) -> None:
        raise TimeoutError("the coordinator is slow")

    told, head.tell = head.tell, fails
    head.look(59)
    with pytest.raises(TimeoutError):
        head.look(1)
    assert not head.ended
    head.tell = told
    head.look(1)
    assert head.ended == 1


def test_why_the_ranks_cannot_be_watched_is_told_once_until_it_changes(
    head: Head, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine that is busy fails a look each minute."""
    looks: list[Exception | None] = [TimeoutError("first")]
    for _ in range(10):
        looks += [*[None] * 60, TimeoutError("again")]
    looks += [ConnectionError("another"), TimeoutError("second")]
    looks += [*[None] * hang_watch.LOOKS_WELL, TimeoutError("third")]
    ended = threading.Event()

    def look() -> None:
        error = looks.pop(0)
        if not looks:
            ended.set()
        if error is not None:
            raise error

    monkeypatch.setattr(hang_watch, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(head.watch, "_look", look)
    head.watch.run(ended)
    told = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert told == ["first", "another", "second", "third"]
