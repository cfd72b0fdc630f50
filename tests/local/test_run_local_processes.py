"""Processes are ended with all that they started, also when their owner is killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from trainingrun.local import processes

ROOT = Path(__file__).parents[2]


def asleep(seconds: int) -> str:
    """The command, with an argument that no other process has: of other tests at the same time."""
    return f"sleep {seconds}.{os.getpid()}"


def living(*seconds: int) -> list[str]:
    wanted = [asleep(each) for each in seconds]
    lines = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    return [line for line in lines if line in wanted]


def wait_until(condition: object, deadline_s: float = 30) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_kill_ends_a_process_with_all_its_descendants(tmp_path: Path) -> None:
    family = ["sh", "-c", f"(setsid {asleep(301)} & {asleep(302)}) & {asleep(303)}"]
    process = processes.start(family, {"PATH": "/usr/bin:/bin"}, tmp_path / "log")
    wait_until(lambda: len(living(301, 302, 303)) == 3)
    processes.kill(process)
    assert living(301, 302, 303) == []
    assert process.returncode == -9


def test_kill_waits_for_a_zombie_that_cannot_be_reaped_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such is one whose first thread has ended before its others, as on a busy machine."""
    process = processes.start(asleep(308).split(), {"PATH": "/usr/bin:/bin"}, tmp_path / "log")
    poll, polls = process.poll, list[None]()

    def late() -> int | None:
        polls.append(None)
        return poll() if len(polls) > 3 else None

    monkeypatch.setattr(process, "poll", late)
    processes.kill(process)
    assert process.returncode == -9


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_CHILD_SUBREAPER")
def test_kill_does_not_wait_for_orphans_that_only_this_process_can_reap(tmp_path: Path) -> None:
    code = f"""
import ctypes, sys, time
sys.path.insert(0, {str(ROOT / "operator")!r})
import psutil
from pathlib import Path
from trainingrun.local import processes
ctypes.CDLL(None).prctl(36, 1)  # orphans become children of this process, as of process 1
family = ["sh", "-c", "(setsid {asleep(305)} & {asleep(306)}) & {asleep(307)}"]
process = processes.start(family, {{"PATH": "/usr/bin:/bin"}}, Path({str(tmp_path / "log")!r}))
while len(psutil.Process(process.pid).children(recursive=True)) < 3:
    time.sleep(0.05)
processes._END_DEADLINE_S = float("inf")
processes.kill(process)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert living(305, 306, 307) == []


def test_what_an_owner_started_ends_when_the_owner_is_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOT / "operator")!r})
from pathlib import Path
from trainingrun.local import processes
reaper = processes.Reaper(Path({str(home)!r}))
environment = {{"PATH": "/usr/bin:/bin"}}
process = processes.start({asleep(304).split()!r}, environment, Path({str(tmp_path / "log")!r}))
reaper.set_processes([process])
Path({str(tmp_path / "ready")!r}).touch()
time.sleep(300)
"""
    owner = subprocess.Popen([sys.executable, "-c", code])
    wait_until((tmp_path / "ready").exists)
    assert living(304) != []
    owner.kill()
    owner.wait()
    wait_until(lambda: not living(304) and not home.exists())
