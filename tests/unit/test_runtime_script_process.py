"""A script's process ends as it would alone, and nothing of it outlives the process of its rank."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from support.processes import wait_for
from trainingrun_protocol.variable_references import with_variables
from trainingrun_runtime.coordinator.checkpoints import Command
from trainingrun_runtime.coordinator.scripts import Orders
from trainingrun_runtime.known_errors.failure_causes import RaisedOnRank
from trainingrun_runtime.worker import script_keeper, script_process
from trainingrun_runtime.worker.script_process import ScriptProcess
from trainingrun_runtime.worker.torchrun import _Rank

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

FAMILY = """
import os, signal, subprocess, sys, time
from pathlib import Path
if {ignores}:
    signal.signal(signal.SIGTERM, lambda *_: Path("asked").touch())
command = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(command, start_new_session=True)
Path("pids.part").write_text(f"{{os.getpid()}} {{child.pid}}")
os.rename("pids.part", "pids")
while True:
    time.sleep(0.1)
"""
"""It has a child in a session of its own, as one that has gone to the background."""


@pytest.fixture
def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], ScriptProcess]]:
    """Starts code as a script in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    started: list[ScriptProcess] = []

    def run(code: str) -> ScriptProcess:
        started.append(
            ScriptProcess([sys.executable, "-c", textwrap.dedent(code)], os.environ, lock)
        )
        return started[-1]

    yield run
    for script in started:
        script.end()
    os.close(lock)


def family(folder: Path) -> list[psutil.Process]:
    """The processes of `FAMILY`, once all are there."""
    wait_for(lambda: (folder / "pids").exists(), 30)
    return [psutil.Process(int(pid)) for pid in (folder / "pids").read_text().split()]


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


class RankOfScript(_Rank):
    """A rank whose coordinator has this command, which it is told when it asks next."""

    def __init__(self, script: ScriptProcess, command: Command) -> None:
        self._script, self._command, self._asked, self._ended = script, command, False, None

    def _tell_process(self, process: psutil.Process) -> None:
        pass

    def _tell(self) -> Orders:
        assert self._ended is None, "a failure is not told as the end of a script"
        return Orders(self._command)


def test_a_script_that_fails_where_all_are_to_end_has_not_failed(
    start: Callable[[str], ScriptProcess],
) -> None:
    for command in (Command.CHECKPOINT_AND_EXIT, Command.SUSPEND):
        rank = RankOfScript(start("raise SystemExit(7)"), command)
        rank._wait()
        assert rank._ended is not None
        assert rank._ended[0] == 7
    with pytest.raises(RaisedOnRank, match="7"):
        RankOfScript(start("raise SystemExit(7)"), Command.CHECKPOINT)._end(7)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_it_ends_as_the_script_does(
    start: Callable[[str], ScriptProcess], code: str, expected: int
) -> None:
    script = start(code)
    assert wait_for(lambda: script.poll() is not None, 30)
    assert script.poll() == expected


def test_sigterm_is_the_scripts_own(start: Callable[[str], ScriptProcess], tmp_path: Path) -> None:
    script = start(
        """
        import signal, sys, time
        from pathlib import Path
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        Path("ready").touch()
        while True:
            time.sleep(0.1)
        """
    )
    wait_for(lambda: (tmp_path / "ready").exists(), 30)
    script.terminate()
    wait_for(lambda: script.poll() is not None, 30)
    assert script.poll() == 5


def test_a_script_that_ends_is_not_ended_by_the_sigterm_that_it_handles(
    start: Callable[[str], ScriptProcess], tmp_path: Path
) -> None:
    """Python has removed its handlers while it deletes modules, for most of a second with PyTorch.

    Another rank was asked to end first, and this one ends with it before it is asked itself.
    """
    script = start(
        f"""
        import signal, time
        from pathlib import Path
        class Module:
            def __del__(self, path=Path, sleep=time.sleep):
                path("finalizing").touch()
                sleep(1)
        module = Module()
        signal.signal(signal.SIGTERM, lambda *_: None)
        time.sleep({5 * script_keeper.LOOK_S})  # it trains
        """
    )
    wait_for(lambda: (tmp_path / "finalizing").exists(), 30)
    script.terminate()
    wait_for(lambda: script.poll() is not None, 30)
    assert script.poll() == 0


@pytest.mark.parametrize("ignores", [False, True])
def test_all_that_it_has_started_ends_with_it(
    start: Callable[[str], ScriptProcess], tmp_path: Path, ignores: bool
) -> None:
    script = start(FAMILY.format(ignores=ignores))
    processes = family(tmp_path)
    named = script.process()
    assert named is not None
    assert named.pid == processes[0].pid
    script.end()
    assert all(map(gone, processes))
    assert (tmp_path / "asked").exists() is ignores, "SIGTERM comes first"


def test_a_script_that_ends_leaves_no_process_behind(
    start: Callable[[str], ScriptProcess], tmp_path: Path
) -> None:
    script = start(FAMILY.format(ignores=False).replace("while True:", "while False:"))
    wait_for(lambda: script.poll() == 0, 30)
    assert not [
        pid for pid in (tmp_path / "pids").read_text().split() if psutil.pid_exists(int(pid))
    ]


def test_no_process_that_a_script_has_left_stays_as_a_zombie_while_it_runs(
    start: Callable[[str], ScriptProcess], tmp_path: Path
) -> None:
    """A script may start many such in days of training, and a container has a limit of them."""
    script = start(
        """
        import signal, subprocess, sys, time
        from pathlib import Path
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        for number in range(3):
            subprocess.run(["sh", "-c", f"sleep 0.3 & echo $! > {number}.pid"])
        Path("started").touch()
        while True:
            time.sleep(0.1)
        """
    )
    wait_for(lambda: (tmp_path / "started").exists(), 30)
    pids = [int(file.read_text()) for file in tmp_path.glob("*.pid")]
    assert len(pids) == 3
    assert wait_for(lambda: not any(map(psutil.pid_exists, pids)), 10)
    assert script.poll() is None
    script.terminate()
    wait_for(lambda: script.poll() is not None, 30)
    assert script.poll() == 5, "its end is seen as before"


@pytest.mark.parametrize("killed", ["rank", "keeper"])
def test_it_ends_with_the_rank_however_that_ends(
    tmp_path: Path, killed: str, request: pytest.FixtureRequest
) -> None:
    rank = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, subprocess, sys, time\n"
            "keeper = subprocess.Popen([sys.executable, '-I', '-S', *sys.argv[1:]], "
            "stdin=subprocess.PIPE, start_new_session=True)\n"
            "print(keeper.pid, flush=True)\n"
            "time.sleep(600)",
            *(script_keeper.__file__, sys.executable, "-c", FAMILY.format(ignores=True)),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    request.addfinalizer(rank.wait)
    request.addfinalizer(rank.kill)
    assert rank.stdout is not None
    with rank.stdout as told:
        keeper = psutil.Process(int(told.readline()))
    script, grandchild = family(tmp_path)
    if killed == "rank":
        rank.kill()
        wait_for(lambda: gone(keeper), script_keeper.END_S + 10)
        assert gone(script)
        assert gone(grandchild)
    else:
        keeper.kill()
        wait_for(lambda: gone(script), 10)
        grandchild.kill()


def test_the_error_that_a_script_has_printed_is_that_of_its_rank() -> None:
    found = script_process.raised(
        [
            "warning: something",
            "[rank1]: Traceback (most recent call last):",
            '[rank1]:   File "/app/train.py", line 12, in <module>',
            "[rank1]:     main()",
            '[rank1]:   File "/app/train.py", line 7, in main',
            '[rank1]:     raise ValueError("bad batch")',
            "[rank1]: ValueError: bad batch",
            "W1128 something of another thread",
        ]
    )
    assert found is not None
    kind, text, place, trace = found
    assert (kind, text, place) == ("ValueError", "bad batch", "train.py:7")
    assert trace.startswith("Traceback")
    assert trace.endswith("ValueError: bad batch")


def test_the_last_of_several_tracebacks_counts_and_its_type_is_without_the_module() -> None:
    found = script_process.raised(
        [
            "Traceback (most recent call last):",
            '  File "/app/train.py", line 3, in <module>',
            "KeyError: 'a'",
            "",
            "During handling of the above exception, another exception occurred:",
            "",
            "Traceback (most recent call last):",
            '  File "/app/train.py", line 5, in <module>',
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited",
        ]
    )
    assert found is not None
    assert found[0] == "DistBackendError"
    assert found[1].startswith("NCCL error")
    assert found[2] == "train.py:5"


@pytest.mark.parametrize("lines", [[], ["killed"], ["Traceback (most recent call last):"]])
def test_without_a_traceback_nothing_is_found(lines: list[str]) -> None:
    assert script_process.raised(lines) is None


@pytest.mark.parametrize("module", ["json.nothing", "json", "json.tool.nothing"])
def test_a_module_that_python_does_not_find_is_told_as_an_import_of_it_is(module: str) -> None:
    """Python prints no traceback then."""
    command = [sys.executable, "-m", module]
    printed = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False).stderr
    found = script_process.raised(["a warning", *printed.splitlines()])
    assert found is not None
    assert found[0] == "ModuleNotFoundError"
    assert module in found[1]


def test_an_exit_code_without_an_error_is_told_as_sys_exit_is(
    start: Callable[[str], ScriptProcess],
) -> None:
    script = start("raise SystemExit(3)")
    wait_for(lambda: script.poll() is not None, 30)
    error = script.error(3)
    assert isinstance(error, RaisedOnRank)
    assert (error.kind, error.text) == ("SystemExit", "3")


def test_an_exit_code_that_the_script_has_chosen_is_told_whatever_it_has_printed_before(
    start: Callable[[str], ScriptProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule on exit codes reads it, and Python itself ends with 1 for an error."""
    script = start("pass")
    lines = ["Traceback (most recent call last):", '  File "/a.py", line 1', "KeyError: 'a'"]
    monkeypatch.setattr(script, "_tail", lambda: [*lines, "the data is gone"])
    error = script.error(42)
    assert isinstance(error, RaisedOnRank)
    assert (error.kind, error.text) == ("SystemExit", "42")
    assert error.trace == "\n".join([*lines, "the data is gone"])
    for code in (1, 42):
        lines[-1] = "RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer"
        assert type(script.error(code)) is RuntimeError, "the loss of another rank has caused it"


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("RuntimeError", "[gloo/transport/tcp/pair.cc] Connection closed by peer", "RuntimeError"),
        ("DistBackendError", "NCCL error", "DistBackendError"),
        ("ValueError", "bad batch", "RaisedOnRank"),
    ],
)
def test_what_the_loss_of_another_rank_causes_is_told_apart(
    start: Callable[[str], ScriptProcess],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    text: str,
    expected: str,
) -> None:
    script = start("pass")
    lines = ["Traceback (most recent call last):", '  File "/a.py", line 1', f"{kind}: {text}"]
    monkeypatch.setattr(script, "_tail", lambda: lines)
    assert type(script.error(1)).__name__ == expected


@pytest.mark.parametrize(
    ("written", "given"),
    [
        ("--to=$(HOME)/a", "--to=/home/ray/a"),
        ("$(NOTHING)", "$(NOTHING)"),
        ("$$(HOME)", "$(HOME)"),
        ("$$$(HOME)", "$/home/ray"),
        ("$HOME", "$HOME"),
        ("$(HOME)$(HOME", "/home/ray$(HOME"),
        ("$(A $$(HOME", "$(A $(HOME"),
        ("$(A$(HOME)", "$(A$(HOME)"),
    ],
)
def test_variables_in_arguments_are_replaced_as_kubernetes_does(written: str, given: str) -> None:
    assert with_variables(written, {"HOME": "/home/ray"}) == given
