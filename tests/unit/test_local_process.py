"""A local run in a process of its own: which run it is, and what ends it."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from support.builders import a_run
from support.cli_server import call
from support.deadlines import ends_within
from trainingrun import Client, RunError
from trainingrun.api.status import Phase
from trainingrun.client.local_process import LocalProcess
from trainingrun.local import LocalError
from trainingrun.local.folder import Folder, own_run

TRAINS = """
import sys, time
from pathlib import Path
from support.builders import a_run
from trainingrun.local.folder import Folder
from trainingrun.local.run import _terminable

with _terminable(), Folder.prepare(a_run(name="one"), Path(sys.argv[1]), False).record:
    print("trains", flush=True)
    time.sleep(600)
"""


def a_process(root: Path, function: str = "nowhere:train") -> LocalProcess:
    """Of a run that is not begun yet; nobody has its module."""
    run: dict[str, Any] = {
        "apiVersion": "trainingrun.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "one"},
        "spec": {"training": {"function": function}, "storage": {"uri": "s3://runs/demo"}},
    }
    return LocalProcess([run], root, None)


def own_folder(folder: Folder) -> Path:
    return folder.root / folder.uri.rpartition("/")[2]


@contextmanager
def trained(root: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process, which holds the lock of a run of that folder."""
    with subprocess.Popen(
        [sys.executable, "-c", TRAINS, str(root)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "trains\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("of_its_name", [True, False], ids=["beside a former run", "alone"])
def test_a_run_that_is_refused_is_not_taken_for_another_one_of_its_folder(
    tmp_path: Path, of_its_name: bool
) -> None:
    if of_its_name:
        with Folder.prepare(a_run(name="one"), tmp_path, False).record as record:
            record.ended(Phase.SUCCEEDED)
    begins = threading.Timer(0.3, lambda: (tmp_path / "latest.json").write_text("{}"))
    begins.start()  # as a run of another process
    with pytest.raises(RunError, match="there is no module nowhere in "):
        a_process(tmp_path).start()
    begins.join()


def test_resume_means_the_own_folder_also_where_a_later_run_has_the_same_name(
    tmp_path: Path,
) -> None:
    first, later = (Folder.prepare(a_run(name="one"), tmp_path, False) for _ in range(2))
    process = a_process(tmp_path, "trainingrun_runtime.examples.linear:train")
    process.own, process._process = own_folder(first), subprocess.Popen(["true"])
    process._process.wait()
    refused = re.escape(f"another process trains {process.own} now")
    with first.record, later.record, pytest.raises(RunError, match=refused):
        process.resume()


def test_the_own_folder_of_a_run_is_resumed_and_none_of_another_name(tmp_path: Path) -> None:
    first, _ = (Folder.prepare(a_run(name="one"), tmp_path, False) for _ in range(2))
    again = Folder.prepare(a_run(name="one"), own_folder(first), True)
    assert (again.uri, again.root, again.first_attempt) == (first.uri, tmp_path, 2)
    with pytest.raises(LocalError, match="holds no run of two to resume"):
        Folder.prepare(a_run(name="two"), own_folder(first), True)


def test_an_interrupt_while_a_run_begins_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_kind: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process, before = a_process(tmp_path), signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1)
        with pytest.raises(KeyboardInterrupt):
            process.start()
        assert process._process.poll() == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGALRM, before)


def test_suspend_ends_the_process_that_trains_a_run_whoever_has_begun_it(tmp_path: Path) -> None:
    with trained(tmp_path) as process:
        code, output, errors = call("suspend", "one", "--folder", str(tmp_path))
        process.wait(60)
    (own,) = tmp_path.glob("one-*")
    assert (code, errors) == (0, "")
    assert output == (
        f"{own} has ended: Suspended · attempt 1; `trainingrun run FILE --local --folder {own} "
        "--resume` continues\n"
    )
    (condition,) = own_run("one", tmp_path)[1]["status"]["conditions"]
    assert condition["message"] == "attempt 1 was stopped", "as Ctrl-C does"
    refused = f"no process trains the run of {own} now; there is nothing to stop"
    assert call("suspend", "one", "--folder", str(tmp_path)) == (1, "", f"{refused}\n")
    with trained(tmp_path) as process:
        Client(folder=tmp_path).get("one").suspend()
        process.wait(60)
    with pytest.raises(RunError, match="there is nothing to stop"):
        Client(folder=tmp_path).get("one").suspend()


def test_suspend_ends_a_process_that_ctrl_z_has_stopped(tmp_path: Path) -> None:
    with trained(tmp_path) as process, ends_within(60):
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        code, output, errors = call("suspend", "one", "--folder", str(tmp_path))
    assert (code, errors) == (0, "")
    assert "has ended: Suspended · attempt 1" in output


def test_a_process_that_has_got_the_number_of_another_one_is_not_ended(tmp_path: Path) -> None:
    folder = Folder.prepare(a_run(name="one"), tmp_path, False)
    own = own_folder(folder)
    other = subprocess.Popen(["sleep", "600"])
    try:
        with folder.record, ends_within(60):
            (own / "local/lock").write_text(str(other.pid))
            code, _, errors = call("suspend", "one", "--folder", str(tmp_path))
        assert (code, errors) == (
            1,
            f"the process that trains the run of {own} is none of this user on this machine; stop "
            "it where it was begun\n",
        )
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
