"""The process of a script that a rank runs as torchrun would, and why it has failed."""

import builtins
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from .. import stacks
from ..known_errors import remedies
from ..known_errors.failure_causes import RaisedOnRank, is_collective_error, retry_of
from ..output import announced
from . import script_keeper

_ENDED_S = script_keeper.END_S + 10.0
"""Seconds in which the keeper has ended the script; longer than it takes."""
_TAIL = 65536
"""Bytes of the end of the error output in which a traceback is looked for."""
_TRACE = "Traceback (most recent call last):"
_OF_RANK = re.compile(r"^\[rank\d+\]: ?")
"""What PyTorch puts before each line of the traceback of a rank."""
_FRAME = re.compile(r'\s+File "(.+)", line (\d+)')
_NO_MODULE = re.compile(r"\S*python\S*: ((?:No module named|Error while finding module) .+)")
"""What `python -m` prints in place of a traceback."""
_ERROR = re.compile(r"([A-Za-z_][\w.]*)(?::\s*(.*))?$")


class ScriptProcess:
    """A script in a process of its own, which ends with this process at the latest.

    Args:
        command: what to run.
        environment: all of its variables.
        held: a descriptor that stays open as long as anything of it runs.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], held: int) -> None:
        self._errors = _error_output()
        self._begin = self._errors.stat().st_size if self._errors is not None else 0
        self._keeper = subprocess.Popen(
            # Its own options: what the environment says to Python is for the script.
            [sys.executable, "-I", "-S", script_keeper.__file__, *command],
            stdin=subprocess.PIPE,
            env=dict(environment),
            pass_fds=(held,),
            start_new_session=True,
        )

    def poll(self) -> int | None:
        """Its exit code, negative: the signal that has ended it; None: it runs."""
        return self._keeper.poll()

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._keeper.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """End it and all that it has started, and wait for that; also where it has ended."""
        if self._keeper.stdin is not None:
            with suppress(OSError):
                self._keeper.stdin.close()
        try:
            self._keeper.wait(_ENDED_S)
        except subprocess.TimeoutExpired:  # such as one that is stopped
            self._keeper.kill()
            self._keeper.wait()

    def process(self) -> psutil.Process | None:
        """The script's own process; None: it is not there yet, or has ended."""
        with suppress(psutil.Error):
            found = psutil.Process(self._keeper.pid).children()
            return min(found, key=lambda child: child.create_time(), default=None)
        return None

    def error(self, code: int) -> BaseException:
        """What to raise for it.

        Args:
            code: its exit code.

        Returns:
            The error that it has printed, as text, or `SystemExit` with its exit code as text;
            where the loss of another rank may have caused it, an error that says so by its type.
        """
        lines = self._tail()
        found = raised(lines)
        same = _rebuilt(*found[:2]) if found is not None else None
        if same is not None and is_collective_error(same):
            return same
        # An error that ends Python has it end with 1: another code the script has chosen itself.
        if found is None or same is None or code != 1:
            return RaisedOnRank("SystemExit", str(code), None, "\n".join(lines), "Always")
        kind, text, place, trace = found
        told = RaisedOnRank(kind, text, place, trace, retry_of(same))
        remedy = remedies.find(same)
        if remedy is not None:
            told.add_note(remedy.advice)
        return told

    def _tail(self) -> list[str]:
        """The last lines of its error output."""
        if self._errors is None:
            return []
        with suppress(OSError), self._errors.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._begin, end - _TAIL))
            return file.read().decode(errors="backslashreplace").splitlines()
        return []


def _error_output() -> Path | None:
    """The file to which this process, and so the script, prints errors."""
    files = announced.own_files()
    return Path(files[-1]) if files else None


def raised(lines: Sequence[str]) -> tuple[str, str, str | None, str] | None:
    """The last error that Python has printed: type, text, place and traceback; None: none.

    Args:
        lines: of the end of an error output.
    """
    told = _NO_MODULE.fullmatch(lines[-1]) if lines else None
    if told is not None:
        return "ModuleNotFoundError", told[1], None, lines[-1]
    begins = [i for i, line in enumerate(lines) if _OF_RANK.sub("", line) == _TRACE]
    if not begins:
        return None
    prefix = _OF_RANK.match(lines[begins[-1]])
    own = [
        _OF_RANK.sub("", line)
        for line in lines[begins[-1] :]
        if (prefix is None) == (_OF_RANK.match(line) is None)
    ]
    last = next((i for i, line in enumerate(own) if i and not line.startswith(" ")), None)
    said = _ERROR.match(own[last]) if last is not None else None
    if last is None or said is None:
        return None
    frames = [match for line in own[:last] if (match := _FRAME.match(line))]
    users = [match for match in frames if stacks.is_of_the_user(match[1])]
    place = f"{Path(users[-1][1]).name}:{users[-1][2]}" if users else None
    # What it has printed after the error is no part of it, but nobody can tell them apart.
    trace = "\n".join(own)
    return said[1].rpartition(".")[2], said[2] or "", place, trace


def _rebuilt(kind: str, text: str) -> BaseException:
    """An error of this type and text, as far as one can be made."""
    known = getattr(builtins, kind, None)
    if isinstance(known, type) and issubclass(known, Exception):
        with suppress(TypeError):
            rebuilt: BaseException = known(text)
            return rebuilt
    other: type[Exception] = type(kind, (Exception,), {})
    return other(text)
