"""Why a command fails: one sentence on stderr and an exit code."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from ..local import LocalError
from ..local.terminal_text import plain_lines

if TYPE_CHECKING:
    from trainingrun_runtime.store.storage_errors import StorageError


class CliError(Exception):
    """A command fails; the text is one sentence."""


class UnreachableError(CliError):
    """The API server did not answer; a later call may succeed."""


class NotFoundError(CliError):
    """The API server answers 404, or there is no such run on this machine."""


def print_error(sentence: str) -> None:
    """Print a sentence on stderr; never wrapped, so that it can be searched for."""
    sentence = plain_lines(sentence).replace("\r", " ")
    Console(stderr=True).print(sentence, style="red", markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def one_sentence(*also: type[Exception]) -> Iterator[None]:
    """End the command with exit code 1 and the error's sentence instead of a traceback.

    Ctrl-C ends it with code 130, as shells count it.

    Args:
        also: Exceptions beside CliError and LocalError whose text is written for users.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as error:
        if not isinstance(error, (CliError, LocalError, *also)):
            raise
        print_error(str(error))
        raise typer.Exit(1) from None


@contextlib.contextmanager
def bucket_access(failed: str = "") -> Iterator[None]:
    """What reads or writes a run's bucket; what goes wrong there is said in a sentence.

    Args:
        failed: What the sentence begins with.

    Raises:
        CliError: The bucket refuses or does not answer, or a package of the extra `cli` is missing.
    """
    try:
        from trainingrun_runtime.store.bucket import StorageError

        try:
            yield
        except StorageError as error:
            raise CliError(f"{failed}{_in_this_shell(error)}") from None
    except ModuleNotFoundError as error:
        raise CliError(f"{error.name} is not installed here; install trainingrun[cli]") from None


def _in_this_shell(error: "StorageError") -> str:
    """What is wrong, and what to do about it here: the sentence's own advice is for pods."""
    from trainingrun_runtime.store import storage_errors

    cause = str(error).partition("; ")[0]
    if isinstance(error, storage_errors.CredentialsError | storage_errors.DeniedError):
        return (
            f"{cause}; the bucket's credentials are those of this shell's environment, such as "
            "AWS_ACCESS_KEY_ID: set them to ones that may read and write the run's folder"
        )
    if isinstance(error, storage_errors.EndpointError | storage_errors.UnreachableError):
        return f"{cause}; if only pods reach that endpoint, name another with --endpoint"
    return str(error)
