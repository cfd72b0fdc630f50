"""Where the commands print, and how each one fails: one sentence on stderr, and an exit code."""

import contextlib
from collections.abc import Iterator

import typer
from rich.console import Console

from ..local.terminal_text import plain_lines


class CliError(Exception):
    """A command fails; the text is one sentence."""


def print_error(sentence: str) -> None:
    """Print a sentence on stderr; never wrapped, so that it can be searched for."""
    sentence = plain_lines(sentence).replace("\r", " ")
    Console(stderr=True).print(sentence, style="red", markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def one_sentence(*also: type[Exception]) -> Iterator[None]:
    """End the command with exit code 1 and the error's sentence instead of a traceback.

    Args:
        also: Exceptions beside CliError whose text is written for users.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, (CliError, *also)):
            raise
        print_error(str(error))
        raise typer.Exit(1) from None


def wide_console() -> Console:
    """Standard output; in a pipe as wide as a line may get, for rich would cut it at 80."""
    console = Console()
    return console if console.is_terminal else Console(width=1000)
