"""What counts as a hang, which rank is the cause, and what is said of it."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from support.processes import wait_for
from trainingrun_protocol.contract import STATE_DIRECTORY_ENV, ContractHang
from trainingrun_protocol.progress import Hang
from trainingrun_runtime import stacks
from trainingrun_runtime.coordinator.hangs import HangClock, Hangs, Silence
from trainingrun_runtime.coordinator.rank_comparison import RankPlace
from trainingrun_runtime.coordinator.ranks import Member, RankProcess
from trainingrun_runtime.hangs import rank_stacks, verdict
from trainingrun_runtime.hangs.rank_stacks import (
    Attendant,
    Frame,
    RankStack,
    State,
    own_stack,
    stack_of,
)
from trainingrun_runtime.progress import looks, rank_reporter
from trainingrun_runtime.progress.rank_measures import (
    TRAFFIC_BYTES_S,
    ChildrenUse,
    Quiet,
    QuietMeter,
    file_bytes,
    traffic_bytes,
)
from trainingrun_runtime.progress.time_accounting import StepReport


def report(step: int, *, in_step: bool = True, longest_s: float = 1.0) -> StepReport:
    return StepReport(1, step, None, 0.0, 0.0, 0.0, 0.0, longest_s=longest_s, in_step=in_step)


def training_clock(after_s: float | None = 20, **told: float) -> HangClock:
    """Of a group that has done five steps at 100 s, and works."""
    clock = HangClock(ContractHang(after_seconds=after_s), 0.0)
    clock.group_started(0.0, 1, 0)
    clock.stepped(100.0, report(5, **told))
    clock.silence(100.0)
    return clock


def silence_at(clock: HangClock, now: float) -> Silence | None:
    """Of a coordinator that runs until then."""
    for second in range(100, int(now) + 1):
        clock.runs(float(second))
    return clock.silence(now)


def test_a_step_that_does_not_end_is_a_hang_though_a_rank_computes() -> None:
    clock = training_clock()
    for second in range(101, 121):
        clock.stepped(second, report(5))
        clock.quiet(second, 1, Quiet(work_s=0.0, traffic_s=60.0))
    assert silence_at(clock, 119) == Silence(1, 19.0, 20)
    found = silence_at(clock, 120)
    assert found is not None
    assert found.is_hang


def test_between_steps_a_hang_is_what_uses_neither_cpu_nor_network() -> None:
    clock = training_clock(30)
    clock.stepped(101.0, report(5, in_step=False))
    clock.quiet(190.0, 1, Quiet(work_s=0.0, traffic_s=90.0))  # an evaluation of 90 s
    assert silence_at(clock, 200) == Silence(1, 10.0, 30)
    clock.quiet(200.0, 1, Quiet(work_s=11.0, traffic_s=100.0))
    found = silence_at(clock, 220)
    assert found is not None
    assert found.seconds == 30.0
    assert found.is_hang


def test_an_evaluation_is_no_hang_between_two_reports_of_what_the_ranks_use() -> None:
    """However short the number is that the user has given."""
    clock = training_clock(10)
    for second in range(101, 400):
        clock.stepped(second, report(5, in_step=False))
        if second % 10 == 0:  # as the ranks report it
            clock.quiet(second, 1, Quiet(work_s=1.0, traffic_s=second))
        found = clock.silence(second)
        assert found is not None
        assert not found.is_hang


def test_a_first_compilation_is_no_hang_and_neither_is_a_download_in_a_step() -> None:
    compiling = HangClock(ContractHang(after_seconds=30), 0.0)
    compiling.group_started(100.0, 1, 0)
    compiling.stepped(100.0, report(2))
    compiling.quiet(200.0, 1, Quiet(work_s=0.0, traffic_s=100.0))
    assert silence_at(compiling, 200) == Silence(1, 0.0, 30)
    downloading = training_clock()
    downloading.quiet(200.0, 1, Quiet(work_s=0.0, traffic_s=1.0))
    assert silence_at(downloading, 200) == Silence(1, 1.0, 20)


def test_auto_is_ten_times_the_longest_step_and_at_least_five_minutes() -> None:
    short, long = training_clock(None), training_clock(None, longest_s=90.0)
    for clock, limit_s in ((short, 300.0), (long, 900.0)):
        found = silence_at(clock, 110)
        assert found is not None
        assert found.limit_s == limit_s


def test_auto_gives_a_rank_that_computes_in_a_step_half_an_hour() -> None:
    clock = training_clock(None)  # an evaluation in the loop's body
    for second in range(101, 1900):
        clock.quiet(second, 1, Quiet(work_s=0.0, traffic_s=second - 100.0))
        found = clock.silence(second)
        assert found is not None
        assert not found.is_hang
    clock.quiet(1900, 1, Quiet(work_s=0.0, traffic_s=1800.0))
    found = clock.silence(1900)
    assert found is not None
    assert found.is_hang


@pytest.mark.parametrize("in_step", [True, False])
@pytest.mark.parametrize("works", [True, False], ids=["computes", "waits for a store"])
def test_auto_takes_no_evaluation_of_90_s_for_a_hang(in_step: bool, works: bool) -> None:
    """However short the steps are, and in each round of a long training."""
    clock, step = training_clock(None, longest_s=0.01, in_step=in_step), 5
    now = 100.0
    for _ in range(20):
        for _ in range(90):
            now += 1
            clock.stepped(now, report(step, longest_s=0.01, in_step=in_step))
            clock.quiet(now, 1, Quiet(0.0 if works else 90.0, traffic_s=90.0))
            found = clock.silence(now)
            assert found is not None
            assert not found.is_hang
        step += 10
        clock.stepped(now, report(step, longest_s=0.01, in_step=in_step))


def test_auto_takes_no_pause_that_was_allowed_for_a_hang() -> None:
    now = [0.0]
    hangs = Hangs(ContractHang(), lambda: now[0])
    hangs.begin(1, 0)
    hangs.stepped(report(5))
    hangs.allow_pause(600.0)
    seen = []
    while now[0] < 901.0:
        now[0] += 1.0
        found = hangs.silence()
        assert found is not None
        seen.append(found.is_hang)
    assert seen.index(True) == 899, "five minutes after the pause"


def test_what_another_group_tells_changes_nothing_and_without_a_group_there_is_no_hang() -> None:
    clock = training_clock()
    clock.group_started(101.0, 2, 5)
    clock.stepped(110.0, report(9))
    clock.quiet(110.0, 1, Quiet(0.0, 0.0))
    assert silence_at(clock, 115) == Silence(2, 14.0, 25)
    clock.group_ended()
    assert silence_at(clock, 1000) is None


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_coordinator_that_was_stopped_itself_takes_nothing_for_a_hang(asked_first: bool) -> None:
    clock = training_clock()
    clock.runs(110.0)
    if asked_first:
        assert clock.silence(400.0) == Silence(1, 0.0, 20)
    clock.runs(400.0)
    assert clock.silence(400.0) == Silence(1, 0.0, 20)
    clock.runs(401.0)
    assert clock.silence(401.0) == Silence(1, 1.0, 20)


def test_how_often_it_is_asked_changes_nothing() -> None:
    """Who asks may read stacks for longer than the gap that means a stopped process."""
    often, seldom = training_clock(), training_clock()
    for second in range(100, 121):
        for clock in (often, seldom):
            clock.runs(float(second))
        often.silence(float(second))
    assert often.silence(120.0) == seldom.silence(120.0) == Silence(1, 20.0, 20)


def test_a_pause_that_was_allowed_is_no_hang_until_it_is_over() -> None:
    now = [0.0]
    hangs = Hangs(ContractHang(after_seconds=20), lambda: now[0])
    hangs.begin(1, 0)
    hangs.allow_pause(100.0)

    def seconds_at(moment: int) -> float:
        while now[0] < moment:
            now[0] += 1.0
            found = hangs.silence()
        assert found is not None
        return found.seconds

    assert seconds_at(100) == 0.0
    assert seconds_at(119) == 19.0


def test_a_hang_is_of_the_group_that_was_ended_for_it_and_over_with_the_next() -> None:
    hangs = Hangs(ContractHang(after_seconds=20))
    hangs.begin(1, 0)
    hangs.hung(1, Hang(time=1.0, seconds=20.0, message="…", under_way=True), ended=True)
    assert hangs.hang_of(1) is not None
    assert hangs.hang_of(2) is None
    hangs.stuck(("pod-1",))
    assert hangs.fields()["stuck_pods"] == ["pod-1"]
    hangs.begin(2, 0)
    found = hangs.fields()
    assert found["stuck_pods"] == []
    assert not found["hang"].under_way
    hangs.hung(2, Hang(time=1.0, seconds=20.0, message="…", under_way=True), ended=False)
    assert hangs.hang_of(2) is None, "it was reported alone"


def test_a_rank_is_quiet_while_it_uses_no_cpu_and_its_pod_transfers_little() -> None:
    meter = QuietMeter(0.0)
    meter.add(1.0, 5.0, 0)
    meter.add(2.0, 5.5, 10_000)
    meter.add(3.0, 5.51, 500_000)
    meter.add(4.0, 5.52, 510_000)
    assert meter.quiet(4.0) == Quiet(work_s=2.0, traffic_s=1.0)
    meter.add(5.0, 5.53, 520_000, accelerators=0.5)
    assert meter.quiet(5.0).work_s == 0.0


def test_the_stacks_that_are_sent_to_the_head_are_no_traffic_of_the_ranks() -> None:
    """Else a look at a hang that takes long would end it."""
    meter = QuietMeter(0.0)
    meter.add(1.0, 5.0, 0)
    meter.add(2.0, 5.0, 0, looks=1_600_000)  # told before they are sent
    meter.add(3.0, 5.0, 900_000, looks=1_600_000)
    meter.add(4.0, 5.0, 1_600_000, looks=1_600_000)
    assert meter.quiet(4.0).traffic_s == 4.0
    meter.add(5.0, 5.0, 2_000_000, looks=1_600_000)
    assert meter.quiet(5.0).traffic_s == 0.0


def test_what_is_told_of_stacks_hides_no_later_traffic() -> None:
    meter = QuietMeter(0.0)
    meter.add(1.0, 5.0, 0)
    meter.add(2.0, 5.0, 0, looks=10**9)  # in a local run nothing of it is seen
    meter.add(60.0, 5.0, 0, looks=10**9)
    meter.add(61.0, 5.0, 400_000, looks=10**9)
    assert meter.quiet(61.0).traffic_s == 0.0


def test_a_node_notes_what_its_stacks_take_before_it_sends_them(
    program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(STATE_DIRECTORY_ENV, str(tmp_path / "state"))
    assert looks.bytes_sent() == 0
    (found,) = Attendant().stacks({3: program("time.sleep(300)")}).values()
    assert looks.bytes_sent() > len(found.text)


def test_traffic_is_that_of_all_devices_but_the_loopback(tmp_path: Path) -> None:
    table = tmp_path / "dev"
    table.write_text(
        "Inter-|   Receive  |  Transmit\n face |bytes packets |bytes packets\n"
        "    lo: 900 1 0 0 0 0 0 0 900 1 0 0 0 0 0 0\n"
        "  eth0: 100 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n"
    )
    assert traffic_bytes(table) == 120
    assert traffic_bytes(tmp_path / "none") == 0


def test_much_that_is_read_or_written_is_work_and_no_traffic() -> None:
    """A claim's traffic is the node's own. In a step of a session only traffic counts."""
    meter = QuietMeter(0.0)
    meter.add(1.0, 5.0, files=10**9)
    meter.add(2.0, 5.0, files=10**9 + 90_000)  # it prints
    assert meter.quiet(2.0) == Quiet(work_s=2.0, traffic_s=2.0)
    meter.add(3.0, 5.0, files=10**9 + 1_090_000)
    assert meter.quiet(3.0) == Quiet(work_s=0.0, traffic_s=3.0)


def test_what_a_process_reads_and_writes_is_counted_with_that_of_those_it_started(
    tmp_path: Path,
) -> None:
    before, children = file_bytes(), ChildrenUse()
    (tmp_path / "state").write_bytes(bytes(3_000_000))
    (tmp_path / "state").read_bytes()
    assert 6_000_000 <= file_bytes() - before < 7_000_000
    assert file_bytes(tmp_path) == 0
    children.read()
    script = f"open({str(tmp_path / 'state')!r}, 'rb').read(); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert children.read()[1] >= 3_000_000
        child.communicate(b"\n")


def test_what_looks_at_an_idle_rank_reads_far_less_than_counts_as_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looks through all processes of the machine."""
    seen: dict[QuietMeter, list[tuple[float, int]]] = {}

    class Meter(QuietMeter):
        def add(self, now: float, *_measured: Any, files: int = 0) -> None:
            seen.setdefault(self, []).append((now, files))

    no_gpu = SimpleNamespace(read=lambda: None)
    monkeypatch.setattr(rank_reporter, "GpuUtilization", lambda: no_gpu)
    monkeypatch.setattr(rank_reporter, "QuietMeter", Meter)
    monkeypatch.setattr(rank_reporter, "USE_INTERVAL_S", 0.5)
    told: list[Any] = []
    remote = SimpleNamespace(remote=lambda *what: told.append(what))
    reporter = rank_reporter.UseReporter(SimpleNamespace(rank_use=remote), 0, 1)
    wait_for(lambda: len(told) >= 5)
    reporter.close()
    own, _of_children = seen.values()
    (began, first), *_, (ended, last) = own
    assert (last - first) / (ended - began) < TRAFFIC_BYTES_S / 10


def test_the_time_counts_from_where_a_rank_imports_the_user_s_code() -> None:
    now = [0.0]
    hangs = Hangs(ContractHang(after_seconds=30), lambda: now[0])
    assert hangs.silence() is None, "Ray starts the ranks, or waits for a node"
    hangs.joins(1)
    now[0] = 10.0
    hangs.joins(1)  # another rank of the same group
    hangs.quiet(1, Quiet(work_s=6.0, traffic_s=60.0))  # it has imported something
    now[0] = 34.0
    assert hangs.silence() == Silence(1, 30.0, 30)
    hangs.begin(1, 0)
    assert hangs.silence() == Silence(1, 0.0, 30)


def test_a_group_that_has_its_predecessor_s_number_did_not_hang_with_it() -> None:
    """That one has ended before its first step could begin."""
    hangs = Hangs(ContractHang(after_seconds=20))
    hangs.joins(1)
    hangs.hung(1, Hang(time=1.0, seconds=20.0, message="…", under_way=True), ended=True)
    hangs.begin(1, 0)
    assert hangs.hang_of(1) is not None, "it went on just as its process was ended"
    hangs.group_ended()
    hangs.joins(1)
    assert hangs.hang_of(1) is None


# Which rank is the cause.


def stack(*calls: tuple[str, str, int], state: State = State.LIVES) -> RankStack:
    return RankStack(state, tuple(Frame(*call) for call in calls))


ALL_REDUCE = stack(
    ("all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/c10d.py", 9),
    ("train", "/code/train.py", 88),
)
READ = stack(("read", "/code/dataset.py", 41), ("train", "/code/train.py", 80))
LOCK = stack(("train.<locals>.locked", "/code/train.py", 12), ("train", "/code/train.py", 80))
STOPPED = stack(("train", "/code/train.py", 80), state=State.STOPPED)
OWN_BACKWARD = stack(
    ("Slow.backward", "/code/train.py", 5),
    ("Tensor.backward", "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", 9),
    ("train", "/code/train.py", 88),
)


@pytest.mark.parametrize(
    ("found", "hung"),
    [
        ({0: ALL_REDUCE, 1: READ, 2: ALL_REDUCE}, [1]),
        ({0: ALL_REDUCE, 1: LOCK}, [1]),
        ({0: ALL_REDUCE, 1: STOPPED}, [1]),
        ({0: READ, 1: STOPPED}, [1]),
        ({0: ALL_REDUCE, 1: None}, [1]),
        ({0: ALL_REDUCE, 1: OWN_BACKWARD}, [1]),
        ({0: ALL_REDUCE, 1: ALL_REDUCE}, []),
        ({0: READ, 1: READ}, []),
    ],
)
def test_the_rank_that_hangs_is_the_one_that_does_not_wait(
    found: dict[int, RankStack | None], hung: list[int]
) -> None:
    assert verdict.hung_ranks(found) == hung


OWN = str(Path(stacks.__file__).parent)
STARTS = stack(
    ("get_objects", "/venv/lib/python3.11/site-packages/ray/_private/worker.py", 1007),
    ("broadcast", "/venv/lib/python3.11/site-packages/ray/train/collective/collectives.py", 9),
    ("agree", f"{OWN}/worker/restore.py", 9),
    ("start", f"{OWN}/worker/worker.py", 9),
    ("TrainingFunction._train", f"{OWN}/worker/training_function.py", 128),
)
IMPORTS = stack(
    ("<module>", "/code/train.py", 5),
    ("_call_with_frames_removed", "<frozen importlib._bootstrap>", 241),
    ("load_training_function", f"{OWN}/worker/training_function.py", 60),
)
PACKAGED = stack(
    ("wait", "/venv/lib/site-packages/torch/distributed/c10d.py", 1),
    ("agree", f"{OWN}/session/session.py", 1),
    ("train", "/venv/lib/site-packages/company/train.py", 7),
    ("_call", f"{OWN}/worker/training_function.py", 170),
)


def test_a_rank_that_waits_to_restore_waits_for_the_one_that_hangs_in_its_import() -> None:
    """Ray's code, which the runtime calls there, is no training that is a package."""
    assert verdict.hung_ranks({0: STARTS, 1: IMPORTS}) == [1]
    assert verdict.where(STARTS) == "in get_objects"
    assert verdict.where(IMPORTS) == "in <module> (train.py:5)"


def of_torchrun(*calls: str) -> RankStack:
    """A rank's own process, of which the script is none or has ended."""
    frames = (
        *((call, f"{OWN}/worker/torchrun.py", 9) for call in (*calls, "TorchrunScript.__call__")),
        ("TrainingFunction._train", f"{OWN}/worker/training_function.py", 128),
    )
    return stack(*frames)


def test_a_rank_whose_script_is_done_waits_for_the_one_that_hangs() -> None:
    done = of_torchrun("_Rank._wait_for_others", "_Rank._wait", "_Rank.run")
    assert verdict.hung_ranks({0: done, 1: READ, 2: done}) == [1]
    assert verdict.hung_ranks({0: STARTS, 1: of_torchrun("_prepare")}) == [1], "it restores"
    beside = of_torchrun("_Rank._wait", "_Rank.run")
    assert verdict.hung_ranks({0: done, 1: beside}) == [1], "its script's own stack is not known"


def test_the_stack_of_a_rank_whose_script_is_done_is_that_of_its_thread_that_waits() -> None:
    """Its main thread is Ray's, and it is told as its script was."""
    threads = [
        {"thread_name": "MainThread", "frames": [{"name": "main_loop", "filename": "/ray/w.py"}]},
        {
            "thread_name": "Thread-1",
            "frames": [{"name": "_train", "filename": f"{OWN}/worker/training_function.py"}],
        },
    ]
    for of_script in (False, True):
        assert [one.function for one in rank_stacks._training(threads, of_script)] == ["_train"]
    (found,) = rank_stacks._training(threads[:1], of_script=True)
    assert found.function == "main_loop", "of a script"
    assert rank_stacks._training(threads[:1], of_script=False) == ()


def test_of_a_training_that_is_a_package_its_own_line_is_said() -> None:
    assert verdict.where(PACKAGED) == "in agree (train.py:7)"
    assert verdict.hung_ranks({0: PACKAGED, 1: READ}) == [1]


def members(number: int) -> dict[int, Member]:
    return {
        rank: Member(RankProcess(b"", 1, 1.0), RankPlace(f"r{rank}", f"node-{rank}", f"pod-{rank}"))
        for rank in range(number)
    }


def test_the_sentence_says_where_each_rank_stands() -> None:
    found = {0: ALL_REDUCE, 1: READ, 2: ALL_REDUCE, 3: ALL_REDUCE}
    hang = verdict.hang_of(found, members(4), 7.0, 312.2, "s3://runs/x/stacks/1/now")
    assert hang.message == (
        "no step for 312 s: ranks 0, 2 and 3 wait in all_reduce (train.py:88); "
        "rank 1 has been in read (dataset.py:41)"
    )
    assert [(row.rank, row.node, row.where, row.hangs) for row in hang.ranks[:2]] == [
        (0, "node-0", "in all_reduce (train.py:88)", False),
        (1, "node-1", "in read (dataset.py:41)", True),
    ]


def test_of_many_ranks_those_that_hang_are_kept_and_few_places_are_said() -> None:
    found = {
        rank: stack(
            ("wait", "/venv/lib/site-packages/torch/distributed/c10d.py", 1),
            ("train", "/code/train.py", rank),
        )
        for rank in range(40)
    }
    found[39] = READ
    hang = verdict.hang_of(found, members(40), 7.0, 20.0, "s3://…")
    assert len(hang.ranks) == 16
    assert hang.ranks[-1].rank == 39
    assert "others wait at 35 more places" in hang.message
    assert hang.message.endswith("; rank 39 has been in read (dataset.py:41)")


# Stacks of real processes.

PROGRAM = """
import sys, time
sys.path.insert(0, {folder!r})
from training_function import call
def train():
    print("ready", flush=True)
    {body}
call(train)
"""


@pytest.fixture
def program(tmp_path: Path):
    """Starts a process that runs `body`, called as the runtime calls a training function."""
    folder = tmp_path / "trainingrun_runtime" / "worker"
    folder.mkdir(parents=True)
    (folder / "training_function.py").write_text("def call(function):\n    function()\n")
    started: list[subprocess.Popen[str]] = []

    def start(body: str) -> RankProcess:
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(PROGRAM).format(folder=str(folder), body=body))
        process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return RankProcess(b"", process.pid, psutil.Process(process.pid).create_time())

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_stack_of_an_endless_loop_and_of_a_stopped_process_is_read(program) -> None:
    loop = program("while True: pass")
    found = stack_of(loop)
    assert verdict.where(found) == "in train (train.py:7)"
    os.kill(loop.pid, signal.SIGSTOP)
    wait_for(lambda: psutil.Process(loop.pid).status() == psutil.STATUS_STOPPED)
    found = stack_of(loop)
    assert found.state is State.STOPPED
    assert verdict.where(found) == "stopped in train (train.py:7)"
    assert "stopped" in found.text
    assert "train.py" in found.text


def test_a_stopped_process_is_ended_and_one_that_took_its_number_is_not(program) -> None:
    stopped, other = program("time.sleep(300)"), program("time.sleep(300)")
    os.kill(stopped.pid, signal.SIGSTOP)
    took_over = other._replace(started=other.started - 60)
    assert Attendant().end({0: stopped, 1: took_over}) == []
    assert not psutil.pid_exists(stopped.pid) or (
        psutil.Process(stopped.pid).status() == psutil.STATUS_ZOMBIE
    )
    assert psutil.Process(other.pid).status() != psutil.STATUS_ZOMBIE
    assert stack_of(took_over).state is State.GONE


def test_where_py_spy_cannot_read_a_process_it_says_why(
    program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sleeping = program("time.sleep(300)")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    found = stack_of(sleeping)
    assert found.state is State.LIVES
    assert found.frames == ()
    assert "py-spy cannot read it" in found.text


def test_a_rank_tells_its_own_stack_without_py_spy() -> None:
    assert "test_a_rank_tells_its_own_stack_without_py_spy" in own_stack().text
