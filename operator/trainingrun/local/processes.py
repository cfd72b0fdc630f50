"""Processes that this run started, and nothing else: how they are found and ended."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

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
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Guardian:
    """Ends what this process started when this process is killed and cannot do so itself.

    A shell holds the other end of a pipe, which the kernel closes whatever ended this process.
    Without it `kill -9`, or a terminal's out-of-memory end, would leave a Ray running for ever.
    """

    _SCRIPT = """
        while read -r line; do leaders=$line; done
        for leader in $leaders; do kill -s KILL -- -"$leader"; done
        rm -rf -- "$1"
    """

    def __init__(self, folder: Path) -> None:
        """Begin to watch; `folder` is removed with the processes."""
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", self._SCRIPT, "guardian", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def watch(self, living: Iterable["subprocess.Popen[bytes]"]) -> None:
        """These processes of `start`, and no others, are to be ended. Call it at each change."""
        assert self._shell.stdin is not None  # noqa: S101 - for the type checker
        with contextlib.suppress(BrokenPipeError):  # somebody killed the guardian
            print(*(process.pid for process in living), file=self._shell.stdin, flush=True)

    def dismiss(self) -> None:
        """Everything was ended in order; before this, the pids may already be somebody else's."""
        self._shell.kill()
        self._shell.communicate()


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process of `start` and all its descendants at once, and wait until they are gone.

    At once, because that is what a lost machine looks like: no process has time to say goodbye.
    """
    family = {process.pid}
    deadline = time.monotonic() + _END_DEADLINE_S
    while time.monotonic() < deadline:
        family |= _descendants(family, process.pid)
        # The process first: a shell whose child is killed before it would end in its own way.
        alive = [pid for pid in sorted(family, key=lambda pid: pid != process.pid) if _kill(pid)]
        process.poll()  # reaps it: an unreaped child would look alive for ever
        if not alive:
            return
        time.sleep(0.05)


def _kill(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _descendants(family: set[int], group: int) -> set[int]:
    """The living processes of the group, and those below any of the family."""
    living = []
    for process in psutil.process_iter(["ppid", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            living.append((process.pid, process.info["ppid"], os.getpgid(process.pid)))
    found = {pid for pid, _, pgid in living if pgid == group}
    grew = True
    while grew:
        below = {pid for pid, ppid, _ in living if ppid in found | family} - found
        found |= below
        grew = bool(below)
    return found
