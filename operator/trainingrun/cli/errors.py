"""What a command says on stderr: a sentence, and of a failure an exit code too."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

import typer
from rich.console import Console

from ..api.errors import RunError
from ..local.terminal_text import plain, plain_lines


class CliError(RunError):
    """The options of a command cannot be used, or it ends with what the sentence says."""


def say(sentence: str) -> None:
    """Print a sentence on stderr, beside what the command prints; names and errors in it may be of
    anybody.
    """
    typer.echo(plain(sentence), err=True)


def print_error(sentence: str) -> None:
    """Print a sentence on stderr; never wrapped, so that it can be searched for."""
    sentence = plain_lines(sentence).replace("\r", " ")
    Console(stderr=True).print(sentence, style="red", markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def one_sentence(*also: type[Exception]) -> Iterator[None]:
    """End the command with exit code 1 and the error's sentence instead of a traceback.

    Ctrl-C ends it with code 130, as shells count it.

    Args:
        also: Exceptions beside RunError whose text is written for users.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as error:
        if not isinstance(error, (RunError, *also)):
            raise
        print_error(str(error))
        raise typer.Exit(1) from None


@contextlib.contextmanager
def writing_stdout() -> Iterator[None]:
    """End the whole command in the same way where its output cannot be written, as on a full disk.

    A pipe whose reader has gone is left to click, which ends the command without a word.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE or not _stdout_fails():
            raise
        # What is left goes nowhere: else Python would end with a code and words of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print_error(
            f"the output cannot be written ({error.strerror}); write it to a disk with space"
        )
        raise SystemExit(1) from None


def _stdout_fails() -> bool:
    """Whether the error is that of standard output; with PYTHONUNBUFFERED a flush alone is none."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False
