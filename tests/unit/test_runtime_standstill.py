"""Which ranks wait for which: said after 30 s, by name, and only while it is so."""

import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.processes import wait_for
from trainingrun_protocol.contract import ContractStorage, RunContract
from trainingrun_protocol.progress import RecordKind
from trainingrun_runtime import stacks
from trainingrun_runtime.coordinator.coordinator import Coordinator
from trainingrun_runtime.coordinator.standstill import PATIENCE_S, At, Location, sentence
from trainingrun_runtime.worker.standstill_watcher import StandstillWatcher

NOW = 1000.0
LONG, SHORT = NOW - PATIENCE_S, NOW - PATIENCE_S + 1


def in_report(since: float = LONG) -> Location:
    return Location(At.REPORT, since=since)


def in_session(where: str = "after a loop", since: float = LONG) -> Location:
    return Location(At.SESSION, where, 9, since)


def at_a_line(since: float = LONG, line: int = 20) -> Location:
    return Location(At.CODE, f"train.py:{line} in train", since=since)


def blocked(line: int) -> Location:
    return replace(at_a_line(line=line), blocked=True)


def returned(since: float = LONG) -> Location:
    return Location(At.RETURNED, since=since)


@pytest.mark.parametrize(
    ("locations", "world_size", "begins"),
    [
        pytest.param(
            {0: in_report()},
            2,
            "rank 0 waits in ray.train.report for over 30 s for rank 1, which is elsewhere; call",
            id="rank 0 reports alone",
        ),
        pytest.param(
            {0: in_report(), 1: at_a_line(SHORT)},
            2,
            "rank 0 waits in ray.train.report for over 30 s for rank 1, which is at train.py:20 in "
            "train; call it on every rank",
            id="rank 0 reports alone, and rank 1 hangs in a collective",
        ),
        pytest.param(
            {0: in_report(), 1: returned(SHORT)},
            2,
            "rank 0 waits in ray.train.report for over 30 s for rank 1, which has returned from "
            "the training function;",
            id="rank 1 has done fewer steps and returned",
        ),
        pytest.param(
            {0: in_report(), 1: in_report(SHORT)},
            4,
            "rank 0 waits in ray.train.report for over 30 s for ranks 2 and 3, of which rank 2 is "
            "elsewhere;",
            id="half of the ranks",
        ),
        pytest.param(
            {5: in_report()},
            9,
            "rank 5 waits in ray.train.report for over 30 s for ranks 0, 1, 2, 3, 4 and 3 more, of",
            id="many ranks",
        ),
        pytest.param(
            {1: in_session(), 0: at_a_line()},
            2,
            "rank 1 waits after a loop with 9 steps done, for over 30 s for rank 0, which is at "
            "train.py:20 in train; every rank must do the same steps",
            id="rank 1 has left its loop early",
        ),
        pytest.param(
            {1: in_session("before a loop"), 0: at_a_line()},
            2,
            "rank 1 waits before a loop with 9 steps done, for over 30 s for rank 0, which is at "
            "train.py:20 in train; what one rank does alone",
            id="rank 0 works on one line between the loops",
        ),
        pytest.param(
            {0: in_session("in session.save()"), 1: in_report()},
            2,
            "rank 1 waits in ray.train.report for over 30 s for rank 0, which is in session.save()",
            id="a report and a save",
        ),
        pytest.param(
            {1: returned(), 0: at_a_line()},
            2,
            "rank 1 returned from the training function over 30 s ago, and not rank 0, which is at "
            "train.py:20 in train; every rank must do the same steps",
            id="rank 1 has returned, and rank 0 hangs",
        ),
        pytest.param(
            {0: blocked(20), 1: blocked(31), 2: blocked(20)},
            3,
            "ranks 0 and 2 stand at train.py:20 in train, and rank 1 at train.py:31 in train, for "
            "over 30 s; where one waits for the other there, every rank must do the same steps",
            id="rank 1 has done fewer steps, and is in the collective that follows",
        ),
    ],
)
def test_who_waits_for_whom(locations: dict[int, Location], world_size: int, begins: str) -> None:
    said = sentence(locations, world_size, NOW)
    assert said
    assert said.startswith(begins)
    assert len(said) <= 500


@pytest.mark.parametrize(
    ("locations", "says"),
    [
        pytest.param(
            {1: in_report(), 2: in_report(), 0: at_a_line(SHORT)},
            ", unless rank 0 still works before its own call, as in an evaluation or a save: then "
            "the wait ends by itself",
            id="rank 0 evaluates",
        ),
        pytest.param(
            {2: in_report()},
            ", unless ranks 0 and 1 still work before their own call, as in",
            id="two ranks work",
        ),
        pytest.param(
            {1: in_report(), 2: in_report(), 0: returned()},
            "(the metrics of rank 0 are used)",
            id="rank 0 has returned",
        ),
        pytest.param(
            {1: in_report(), 2: in_report(), 0: in_session("in session.save()")},
            "(the metrics of rank 0 are used)",
            id="rank 0 waits for the others",
        ),
    ],
)
def test_a_rank_that_may_still_report_is_not_said_to_miss_it(
    locations: dict[int, Location], says: str
) -> None:
    said = sentence(locations, 3, NOW) or ""
    assert "call it on every rank equally often, not under `if rank == 0`" in said
    assert says in said
    assert (" unless " in says) is (" unless " in said)


@pytest.mark.parametrize(
    "locations",
    [
        pytest.param({}, id="all move"),
        pytest.param({0: in_report(SHORT)}, id="a moment ago"),
        pytest.param({0: in_report(), 1: in_report(SHORT)}, id="all are in the same report"),
        pytest.param({0: in_session(), 1: in_session()}, id="all are at the same place"),
        pytest.param({0: at_a_line(), 1: at_a_line()}, id="all are in a long step"),
        pytest.param({0: at_a_line()}, id="one is in a long step"),
        pytest.param(
            {0: blocked(20), 1: at_a_line(line=31)},
            id="one waits for the others' data in each step",
        ),
        pytest.param({0: blocked(20), 1: blocked(20)}, id="all wait for something on one line"),
        pytest.param(
            {0: blocked(20), 1: replace(blocked(31), since=SHORT)},
            id="one has come to another line a moment ago",
        ),
        pytest.param({0: returned(), 1: returned()}, id="all have returned"),
        pytest.param({1: in_session("before a loop")}, id="one evaluates for all"),
        pytest.param({1: returned()}, id="one has returned, and the other works"),
        pytest.param({1: returned(), 0: at_a_line(SHORT)}, id="one works on one line a moment"),
    ],
)
def test_nobody_waits_in_vain(locations: dict[int, Location]) -> None:
    assert sentence(locations, 2, NOW) is None


def test_the_sentence_does_not_change_with_the_clock() -> None:
    """The operator would write the status again and again."""
    locations = {0: in_report(), 1: at_a_line()}
    assert sentence(locations, 2, NOW) == sentence(locations, 2, NOW + 100)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    storage = ContractStorage(uri="s3://b/r")
    contract = RunContract(name="a", namespace="b", uid="0", attempt=1, storage=storage)
    made = Coordinator(contract, 3, 1000.0, tmp_path / "progress.json", None)
    yield made
    made.close()


def test_the_document_says_it_while_it_is_so(coordinator: Coordinator) -> None:
    group = coordinator.group_started(2, 0, [])
    coordinator.rank_location(0, group, in_report(), PATIENCE_S - 20)
    assert coordinator.document().standstill is None
    coordinator.rank_location(0, group, in_report(), PATIENCE_S)
    assert "rank 0 waits in ray.train.report" in (coordinator.document().standstill or "")
    coordinator.rank_location(0, group, None, 0)
    assert coordinator.document().standstill is None


def test_a_former_group_does_not_count(coordinator: Coordinator) -> None:
    group = coordinator.group_started(2, 0, [])
    coordinator.rank_location(0, group, in_report(), PATIENCE_S)
    coordinator.disrupted(RecordKind.WORKER_LOST, "rank 1 died", (1,))
    assert coordinator.document().standstill is None
    coordinator.group_started(2, 0, [])
    coordinator.rank_location(0, group, in_report(), PATIENCE_S)
    assert coordinator.document().standstill is None


class Told:
    """Takes what a watcher tells, as an actor's handle does."""

    def __init__(self) -> None:
        self.rank_location, self.first = self, threading.Event()
        self.calls: list[Any] = []

    def remote(self, *call: Any) -> None:
        self.calls.append(call)
        self.first.set()

    def another(self, is_it: Callable[[Location | None], bool]) -> bool:
        """Waits for such a location; False: it does not come."""
        deadline = time.monotonic() + 10
        while True:
            self.first.clear()  # before the look: what is told after it is not missed
            if any(is_it(call[2]) for call in self.calls):
                return True
            if not self.first.wait(deadline - time.monotonic()):
                return False

    def at_session(self) -> list[Any]:
        """The calls about a place of the session, and not about a line of this test."""
        return [call for call in self.calls if call[2] is not None and call[2].at is At.SESSION]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    module = "trainingrun_runtime.worker.standstill_watcher"
    monkeypatch.setattr(f"{module}.CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(f"{module}.TOLD_AFTER_S", 0.05)
    return Told()


def test_a_wait_is_told_once_and_its_end_too(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = list[None]()
    monkeypatch.setattr(StandstillWatcher, "_cpu_s", lambda self: checks.append(None) or 0.0)
    watcher = StandstillWatcher(told, 3, 2)
    with watcher.waiting(At.SESSION, "after a loop", 9):
        assert told.another(lambda place: place is not None and place.at is At.SESSION)
        until = len(checks) + 20
        wait_for(lambda: len(checks) > until)
    ((rank, group, location, seconds),) = told.at_session()
    before = len(told.calls)
    wait_for(lambda: (3, 2, None, 0.0) in told.calls[before - 1 :])
    watcher.close()
    assert (rank, group, location) == (3, 2, Location(At.SESSION, "after a loop", 9))
    assert seconds >= 0.05


def test_a_call_that_fails_does_not_end_the_watch(told: Told) -> None:
    take, failed = told.remote, list[Any]()

    def fail_first(*call: Any) -> None:
        if not failed:
            failed.append(call)
            raise ConnectionError("the head does not answer")
        take(*call)

    told.remote = fail_first  # type: ignore[method-assign]
    watcher = StandstillWatcher(told, 3, 2)
    with watcher.waiting(At.SESSION, "after a loop", 9):
        assert told.another(lambda place: place is not None and place.at is At.SESSION)
    watcher.close()
    assert failed
    assert told.at_session()[0][2] == Location(At.SESSION, "after a loop", 9)


def test_a_line_of_the_users_code_is_told(told: Told) -> None:
    watcher = StandstillWatcher(told, 0, 1)
    assert told.first.wait(10)  # here, in this file, while it waits in Python's own library
    watcher.close()
    location = told.calls[0][2]
    assert location.at is At.CODE
    assert location.where.startswith("test_runtime_standstill.py:")
    assert location.where.endswith(" in test_a_line_of_the_users_code_is_told")


def test_a_thread_that_computes_on_one_line_is_not_blocked_and_one_that_waits_is(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainingrun_runtime.worker.standstill_watcher.TOLD_AFTER_S", 0.5)
    watcher = StandstillWatcher(told, 0, 1)
    while not told.calls:  # without the interpreter's lock, so that the watcher runs meanwhile
        hashlib.pbkdf2_hmac("sha256", b"", b"", 3_000_000)
    computing = told.calls[0][2]
    assert told.another(lambda location: location is not None and location.blocked)
    watcher.close()
    assert (computing.at, computing.blocked) == (At.CODE, False)


def test_a_return_is_told_at_once(told: Told) -> None:
    StandstillWatcher(told, 1, 1).returned()
    assert [call[2].at for call in told.calls] == [At.RETURNED]


def test_a_line_of_a_training_that_is_a_package_of_the_image_is_told() -> None:
    """Only what the runtime has called: frames of Ray, and those of libraries, are others."""
    site, barrier = "/venv/lib/python3.11/site-packages", threading.Barrier(2, timeout=10)
    call: Callable[[], object] = barrier.wait
    runtime = str(Path(stacks.__file__).with_name("worker") / "training_function.py")
    for file in (f"{site}/torch/x.py", f"{site}/nets/train.py", runtime, f"{site}/ray/thread.py"):
        scope: dict[str, Any] = {"__name__": Path(file).parent.name, "inner": call}
        exec(compile("def called():\n    inner()", file, "exec"), scope)
        call = scope["called"]
    rank = threading.Thread(target=call)
    rank.start()
    while not barrier.n_waiting:
        time.sleep(0.01)
    assert rank.ident is not None
    found = stacks.line_under_way(sys._current_frames()[rank.ident])
    barrier.wait()
    rank.join()
    assert found is not None
    assert (found.f_code.co_filename, found.f_lineno) == (f"{site}/nets/train.py", 2)
