"""Processes that this run started, and no others: how they are started, found and killed."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

import psutil

_END_DEADLINE_S = 10.0
"""How long killed processes may take to vanish; longer means one hangs in the kernel."""


def start(
    command: list[str], environment: Mapping[str, str], log: Path
) -> "subprocess.Popen[bytes]":
    """Start a command as the leader of its own session, with its output appended to `log`.

    A session of its own: Ctrl-C in the terminal then reaches only this process, which ends the
    others in an order that keeps the last checkpoint.
    """
    with _opened(log) as output:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _opened(log: Path) -> BinaryIO:
    """The file, or where it cannot be written nowhere: a node that is replaced has to start."""
    try:
        return log.open("ab")
    except OSError:
        return Path(os.devnull).open("ab")


class Reaper:
    """Kills the processes that this process started if this process itself is killed.

    A shell reads from a pipe, which the kernel closes however this process ends. Without it
    `kill -9`, or running out of memory, would leave a Ray running without limit.
    """

    _SCRIPT = """
        while read -r line; do leaders=$line; done
        for leader in $leaders; do kill -s KILL -- -"$leader"; done
        rm -rf -- "$1"
    """

    def __init__(self, folder: Path) -> None:
        """Start the shell; `folder` is removed with the processes."""
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", self._SCRIPT, "reaper", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def set_processes(self, living: Iterable["subprocess.Popen[bytes]"]) -> None:
        """The processes of `start` to kill, and no others. Call it at each change."""
        assert self._shell.stdin is not None  # noqa: S101 - for the type checker
        with contextlib.suppress(BrokenPipeError):  # the shell was killed
            print(*(process.pid for process in living), file=self._shell.stdin, flush=True)

    def stop(self) -> None:
        """Kill nothing any more: all processes have ended, and their pids may be reused."""
        self._shell.kill()
        self._shell.communicate()


def kill(*processes: "subprocess.Popen[bytes]") -> None:
    """Kill processes of `start` and all their descendants at once, and wait until they are gone.

    With SIGKILL, as when a machine is lost: no process can clean up.
    """
    leaders = {process.pid for process in processes}
    family = set(leaders)
    deadline = time.monotonic() + _END_DEADLINE_S
    while time.monotonic() < deadline:
        family |= _descendants(family, leaders)
        # The leaders first: a shell whose child is killed runs its next command.
        alive = [pid for pid in sorted(family, key=lambda pid: pid not in leaders) if _kill(pid)]
        # Reaps them. One whose first thread has ended is a zombie already, and cannot be reaped
        # before its other threads have ended too.
        unreaped = [process for process in processes if process.poll() is None]
        for pid in family - leaders:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)  # an orphan, where this is process 1
        if not alive and not unreaped:
            return
        time.sleep(0.05)


def _kill(pid: int) -> bool:
    """Whether it lived; a zombie has ended, whether its parent ever reaps it or not."""
    with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
        os.kill(pid, signal.SIGKILL)
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def _descendants(family: set[int], groups: set[int]) -> set[int]:
    """The living processes of the groups, and those below any of the family."""
    living = []
    for process in psutil.process_iter(["ppid", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            living.append((process.pid, process.info["ppid"], os.getpgid(process.pid)))
    found = {pid for pid, _, pgid in living if pgid in groups}
    grew = True
    while grew:
        below = {pid for pid, ppid, _ in living if ppid in found | family} - found
        found |= below
        grew = bool(below)
    return found
