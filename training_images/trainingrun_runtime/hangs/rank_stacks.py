"""The stacks of the ranks on one node, taken by another process: also of one that is stopped.

py-spy reads the memory of a process of the same user; it needs no right beyond that of a debugger,
which `stacks.allow_tracing` gives where the kernel grants it to parents alone. Without a pause it
reads Python's frames; with one, native frames too.
"""

import json
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import psutil

from ..coordinator.ranks import RankProcess
from ..progress import looks

FRAMES_S = 3.0
"""Seconds for Python's frames."""
NATIVE_S = 6.0
"""Seconds for native frames: the symbols of large libraries are read for them."""
END_S = 3.0
"""Seconds for the end of a process that was killed."""
LARGEST = 200_000
"""Characters of a text that are kept."""
_DEEPEST = 500
"""Frames of a stack that are looked at."""
_OF_TRAINING = "/trainingrun_runtime/worker/training_function.py"
"""In the stack of the thread that trains."""


class State(Enum):
    """What a process does."""

    LIVES = auto()
    STOPPED = auto()
    """By a signal or a debugger: it is not scheduled."""
    GONE = auto()


@dataclass(frozen=True)
class Frame:
    """One call of a stack."""

    function: str
    file: str
    line: int


@dataclass(frozen=True)
class RankStack:
    """Where a rank stands."""

    state: State
    frames: tuple[Frame, ...] = ()
    """Of the thread that trains, innermost first; none: not known."""
    text: str = ""
    """All threads, for a person."""


class Attendant:
    """An actor of Ray on a node with ranks."""

    def stacks(self, processes: Mapping[int, RankProcess]) -> dict[int, RankStack]:
        """Where each of these ranks of this node stands."""
        with ThreadPoolExecutor(8) as pool:
            found = dict(zip(processes, pool.map(stack_of, processes.values()), strict=True))
        looks.send(sum(len(one.text.encode()) for one in found.values()))
        return found

    def end(self, processes: Mapping[int, RankProcess]) -> list[int]:
        """End the processes of these ranks; the ranks whose process is still there."""
        found = {rank: _living(process) for rank, process in processes.items()}
        for process in found.values():
            if process is not None:
                process.kill()  # a stopped one, too
        psutil.wait_procs([one for one in found.values() if one is not None], timeout=END_S)
        return [rank for rank, one in found.items() if one is not None and _runs(one)]


def stack_of(process: RankProcess) -> RankStack:
    """Where a process of this node stands; never raises."""
    found = _living(process)
    if found is None:
        return RankStack(State.GONE, text="the process has ended\n")
    state = State.STOPPED if _stopped(found) else State.LIVES
    threads, problem = _threads(process.pid)
    native = None
    if state is State.LIVES:  # one that is stopped cannot be paused
        native, _ = _py_spy(NATIVE_S, "--native", "--pid", str(process.pid))
    text = native or (_text(threads) if threads else f"py-spy cannot read it: {problem}\n")
    if state is State.STOPPED:
        text = f"the process is stopped, as by SIGSTOP or a debugger\n\n{text}"
    return RankStack(state, _training(threads, process.of_script), text[:LARGEST])


def own_stack() -> RankStack:
    """In a rank: the same without py-spy."""
    lines: list[str] = []
    frames: tuple[Frame, ...] = ()
    names = {one.ident: one.name for one in threading.enumerate()}
    for thread, frame in sys._current_frames().items():
        stack = traceback.extract_stack(frame)
        lines += [f'Thread "{names.get(thread, thread)}"\n', *reversed(stack.format()), "\n"]
        found = tuple(
            Frame(one.name, one.filename, one.lineno or 0) for one in reversed(stack[-_DEEPEST:])
        )
        if any(one.file.endswith(_OF_TRAINING) for one in found):
            frames = found
    return RankStack(State.LIVES, frames, "".join(lines)[:LARGEST])


def _living(process: RankProcess) -> psutil.Process | None:
    """The process, unless another one has its number now."""
    try:
        found = psutil.Process(process.pid)
        same = abs(found.create_time() - process.started) < 1.0
    except psutil.Error:
        return None
    return found if same and _runs(found) else None


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _stopped(process: psutil.Process) -> bool:
    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def _threads(pid: int) -> tuple[list[dict[str, Any]], str]:
    """Its threads as py-spy has them; none, and why."""
    problem = ""
    for _ in range(3):  # what runs meanwhile may change under its eyes
        found, problem = _py_spy(FRAMES_S, "--nonblocking", "--json", "--pid", str(pid))
        if found is not None:
            try:
                return [one for one in json.loads(found) if isinstance(one, dict)], ""
            except ValueError as error:
                problem = str(error)
    return [], problem


def _py_spy(limit_s: float, *arguments: str) -> tuple[str | None, str]:
    """What it prints; None, and why not."""
    command = [str(Path(sys.executable).with_name("py-spy")), "dump", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return None, str(error)
    if done.returncode or not done.stdout.strip():
        lines = done.stderr.strip().splitlines()
        return None, lines[-1] if lines else f"exit code {done.returncode}"
    return done.stdout, ""


def _frames(thread: Mapping[str, Any]) -> tuple[Frame, ...]:
    return tuple(
        Frame(str(one.get("name")), str(one.get("filename")), int(one.get("line") or 0))
        for one in (thread.get("frames") or [])[:_DEEPEST]
    )


def _training(threads: list[dict[str, Any]], of_script: bool) -> tuple[Frame, ...]:
    main: tuple[Frame, ...] = ()
    for thread in threads:
        frames = _frames(thread)
        if any(one.file.endswith(_OF_TRAINING) for one in frames):
            return frames  # also of a rank whose script has ended, which is told in its place
        if of_script and thread.get("thread_name") == "MainThread":
            main = frames
    return main


def _text(threads: list[dict[str, Any]]) -> str:
    lines = []
    for thread in threads:
        lines.append(f'Thread "{thread.get("thread_name")}"')
        lines += [f"    {one.function} ({one.file}:{one.line})" for one in _frames(thread)]
        lines.append("")
    return "\n".join(lines)
