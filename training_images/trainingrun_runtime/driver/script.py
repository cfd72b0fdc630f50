"""Runs a user's script in the driver's process, as Python itself would run it."""

import argparse
import json
import os
import runpy
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from traceback import walk_tb
from typing import Any, NoReturn, TextIO

from trainingrun_protocol.contract import CONFIG_ENV, OUTPUT_ENV
from trainingrun_protocol.exit_codes import FAILED_EXIT_CODE

from .. import stacks
from ..error_text import first_line

_SHOWN = 200
"""Characters of an error's own text in a sentence: an attempt's message has 500."""


class FailedAfterTraining(Exception):
    """The script has raised an error, or ended with an exit code, after `fit()` had succeeded.

    Args:
        error: what it has raised.
    """

    def __init__(self, error: BaseException) -> None:
        self.raised = error
        where = stacks.raised_at(error)
        line = first_line(error)
        shown = line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
        super().__init__(
            f"{type(error).__name__}: {shown}{f' at {where}' if where else ''}, after the training"
        )

    def sentence(self, has_checkpoint: bool | None) -> str:
        """The cause, and what to do.

        Args:
            has_checkpoint: whether the run has one. None: that is not known.
        """
        if has_checkpoint is None:
            return f"{self}, which is done; correct the script"
        if has_checkpoint:
            return (
                f"{self}, which is done; correct the script, or read the weights of the last "
                "checkpoint with trainingrun_runtime.results"
            )
        return (
            f"{self}, which is done and has saved no checkpoint; correct the script, and pass "
            "a checkpoint to ray.train.report if the weights are to be kept"
        )


class ArgumentsRefused(Exception):
    """The script's argparse has refused its command line.

    Args:
        message: what it has said of it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(
            f"the script refuses its arguments: {first_line(ValueError(message))}; correct "
            "training.script.args"
        )


def run(script: str, arguments: Sequence[str], config: Mapping[str, Any]) -> None:
    """Run the script as `__main__`; what it raises is raised.

    Args:
        script: its path.
        arguments: on its command line.
        config: `training.config`, for its environment.

    Raises:
        ArgumentsRefused: by its argparse, which would end it with exit code 2.
    """
    path = Path(script)
    os.environ.setdefault(CONFIG_ENV, json.dumps(config))
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    _keep_driver_on_exit()
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as error:
        message = _argparse_error(error)
        if message is None:
            raise
        raise ArgumentsRefused(message) from error


def _argparse_error(error: SystemExit) -> str | None:
    """What argparse has said before it ended the process with this; None: it was not argparse.

    Its exit code alone says nothing: others use 2, too.
    """
    for frame, _ in walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_name == "error" and code.co_filename == argparse.__file__:
            return str(frame.f_locals.get("message", "usage error"))
    return None


def copy_output() -> None:
    """From now on copy what this thread prints to the file of `OUTPUT_ENV`, if it is set."""
    name = os.environ.get(OUTPUT_ENV)
    if name:
        sys.stdout = _Copied(sys.stdout, Path(name))


class _Copied:
    """A stream whose text goes to a file too, where one thread has written it.

    Ray prints the output of the ranks in another thread.
    """

    def __init__(self, stream: TextIO, file: Path) -> None:
        self._stream, self._file, self._thread = stream, file, threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() == self._thread:
            with suppress(OSError), self._file.open("a") as file:  # the log has it all the same
                file.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _keep_driver_on_exit() -> None:
    """Make `os._exit` end the script, not the driver, which says how the run ends.

    Of another thread it ends the driver, and not with 0, which means that training is done.
    """
    exit_now, driver = os._exit, os.getpid()

    def exit_checked(code: int) -> NoReturn:
        if os.getpid() != driver:  # a forked child
            exit_now(code)
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(code)
        exit_now(code or FAILED_EXIT_CODE)

    os._exit = exit_checked  # type: ignore[assignment]
