"""Runs a command, and leaves nothing of it behind: `python -I -S script_keeper.py COMMAND...`.

It is the parent of a script that a rank starts. It ends with the command's own exit code or signal,
hands SIGTERM on to it, and ends it once its standard input is closed, as by the end of the rank's
process, however that ends: first by SIGTERM, then, with all that it has started, by SIGKILL. It
imports nothing but Python's own modules.

A script that handles SIGTERM is not sent one once its handler is gone: Python removes handlers
before it deletes modules (`Py_FinalizeEx`), which with PyTorch takes most of a second. Ranks are
asked to end up to a second apart, and the first of them has all end after the same step: a SIGTERM
in that second would end a rank that has written its checkpoint with a signal instead of with 0.
"""

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

END_S = 3.0
"""Seconds after SIGTERM in which the command may end by itself."""
_KILLING_S = 5.0
"""Seconds in which what was killed is gone."""
LOOK_S = 0.2
"""Seconds between two looks whether the command handles SIGTERM."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
"""Of the kernel's `prctl.h`."""


def main() -> None:
    """Run the command of the command line; ends as it does."""
    asked: list[int] = []
    child: subprocess.Popen[bytes] | None = None
    handled = threading.Event()  # a handler was there

    def hand_on(number: int, _: FrameType | None) -> None:
        asked.append(number)
        if child is not None and child.returncode is None:
            if handled.is_set() and not _handles_sigterm(child.pid):
                return
            _send(child, number)

    signal.signal(signal.SIGTERM, hand_on)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # One thread runs yet, so that code may run in the child before the command.
    child = subprocess.Popen(
        sys.argv[1:],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_follow,
    )
    if asked:
        _send(child, signal.SIGTERM)
    threading.Thread(target=_end_with_rank, args=(child, handled), daemon=True).start()
    code = _wait(child)
    _kill_all(child.pid)
    with suppress(ChildProcessError):  # until none is left, so that none stays as a zombie
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def _wait(child: "subprocess.Popen[bytes]") -> int:
    """Wait for the command and, lest they stay as zombies, for orphans; as `Popen.wait` says it."""
    while child.returncode is None:
        pid, status = os.waitpid(-1, 0)
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode


def _send(child: "subprocess.Popen[bytes]", number: int) -> None:
    # Not by Popen, which asks first whether the child has ended: then `_wait` would miss its end.
    if child.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, number)


def _follow() -> None:
    """In the child: end with this process, and let debuggers of the same user read it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_PTRACER, -1)


def _prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):  # another system than Linux
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _handles_sigterm(pid: int) -> bool:
    """Whether it has a handler now; on other systems than Linux never."""
    with suppress(OSError, ValueError):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split(maxsplit=1)[0], 16)
        return bool(caught >> (signal.SIGTERM - 1) & 1)
    return False


def _end_with_rank(child: "subprocess.Popen[bytes]", handled: threading.Event) -> None:
    while not select.select([0], [], [], LOOK_S)[0]:  # nothing is written: it is closed at the end
        if not handled.is_set() and _handles_sigterm(child.pid):
            handled.set()
    _send(child, signal.SIGTERM)
    deadline = time.monotonic() + END_S
    while child.returncode is None and time.monotonic() < deadline:
        time.sleep(0.02)
    _kill_all(child.pid)


def _kill_all(session: int) -> None:
    """Kill all that descends from this process, and wait until it is gone.

    Args:
        session: the process group of the command, which is all that is known on other systems.
    """
    with suppress(OSError):
        os.killpg(session, signal.SIGKILL)
    deadline = time.monotonic() + _KILLING_S
    while (found := _descendants()) and time.monotonic() < deadline:
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _descendants() -> set[int]:
    """Living processes that this one, or one of them, has started; orphans were adopted."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):  # it has ended
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(entry.name)] = int(parent)
    found: set[int] = set()
    while (
        more := {pid for pid, parent in parents.items() if parent in {os.getpid(), *found}} - found
    ):
        found |= more
    return found


if __name__ == "__main__":
    main()
