"""How a command fails: one sentence on stderr and an exit code."""

import contextlib
from collections.abc import Iterator

import typer
from rich.console import Console

from ..api.errors import RunError
from ..local.terminal_text import plain_lines


class CliError(RunError):
    """The options of a command cannot be used, or it ends with what the sentence says."""


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
