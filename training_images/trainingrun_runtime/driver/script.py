"""Runs a user's script in the driver's process, as Python itself would run it."""

import argparse
import json
import logging
import os
import runpy
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import thread as thread_pool
from contextlib import suppress
from pathlib import Path
from traceback import walk_tb
from typing import Any, NoReturn, TextIO

from trainingrun_protocol.contract import CONFIG_ENV, OUTPUT_ENV
from trainingrun_protocol.exit_codes import FAILED_EXIT_CODE

from .. import stacks
from ..error_text import first_line

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
"""Seconds between two looks whether the script's threads are done."""
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
    former = threading.enumerate()
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as error:
        message = _argparse_error(error)
        if message is not None:
            raise ArgumentsRefused(message) from error
        if not error.code and not isinstance(error, _EndNow):
            _wait_for_threads(former)
        raise
    _wait_for_threads(former)


def _wait_for_threads(former: Collection[threading.Thread]) -> None:
    """Wait for what the script's threads still do, as Python does before it ends.

    Args:
        former: those that were there before the script.
    """
    said = False
    while left := [
        one
        for one in threading.enumerate()
        if one not in former and not one.daemon and not _is_idle(one)
    ]:
        if not said:
            names = ", ".join(one.name for one in left)
            log.info("the script is done, and the run ends once its threads are: %s", names)
            said = True
        left[0].join(_LOOK_EVERY_S)


def _is_idle(thread: threading.Thread) -> bool:
    """Whether it waits for work in a pool: Python ends those, and the driver needs its own."""
    work = getattr(thread, "pending_work_items", None)  # of a pool of processes, joblib's too
    if work is not None:
        return not work
    frame = sys._current_frames().get(thread.ident or 0)
    queue = thread_pool._threads_queues.get(thread)
    waits = frame is not None and frame.f_code is thread_pool._worker.__code__
    return waits and queue is not None and queue.empty()


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


class _EndNow(SystemExit):
    """Of `os._exit(0)`, which waits for no thread."""


def _keep_driver_on_exit() -> None:
    """Make `os._exit` end the script, not the driver, which says how the run ends.

    Of another thread it ends the driver, and not with 0, which means that training is done.
    """
    exit_now, driver = os._exit, os.getpid()

    def exit_checked(code: int) -> NoReturn:
        if os.getpid() != driver:  # a forked child
            exit_now(code)
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(code) if code else _EndNow(code)
        exit_now(code or FAILED_EXIT_CODE)

    os._exit = exit_checked  # type: ignore[assignment]
