"""Why a call fails: one sentence, of which the command line prints the same."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..api.errors import RunError
from ..api.errors import UnreachableError as UnreachableError

if TYPE_CHECKING:
    from trainingrun_runtime.store.storage_errors import StorageError


class NotFoundError(RunError):
    """The API server says that there is none, or there is no such run on this machine."""


class _AnsweredError(RunError):
    """The API server answers, and not with what was asked for.

    Args:
        sentence: What it says.
        status: The answer's HTTP status.
    """

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class ForbiddenError(_AnsweredError):
    """The API server answers 401 or 403: what was asked for stays unknown."""


class RefusedError(_AnsweredError):
    """The API server, or what is in between, answers with another error."""


class NotServedError(RefusedError):
    """The API server knows no such kind; a proxy in between may have said so as well."""


class NoLogError(RunError):
    """A container has no log yet."""


class NotBegunError(RunError):
    """A run has written nothing yet; a later call may succeed."""


class RunTimeoutError(RunError, TimeoutError):
    """A run has not ended within the time that was given."""


@contextlib.contextmanager
def bucket_access(failed: str = "") -> Iterator[None]:
    """What reads or writes a run's bucket; what goes wrong there is said in a sentence.

    Args:
        failed: What the sentence begins with.

    Raises:
        RunError: The bucket refuses or does not answer, or a package of the extra `cli` is
            missing.
    """
    try:
        from trainingrun_runtime.store.bucket import StorageError

        try:
            yield
        except StorageError as error:
            raise RunError(f"{failed}{_in_this_shell(error)}") from None
    except ModuleNotFoundError as error:
        raise RunError(f"{error.name} is not installed here; install trainingrun[cli]") from None


def _in_this_shell(error: "StorageError") -> str:
    """What is wrong, and what to do about it here: the sentence's own advice is for pods."""
    from trainingrun_runtime.store import storage_errors

    if error.mounted:
        return str(error)
    cause = str(error).partition("; ")[0]
    if isinstance(error, storage_errors.CredentialsError | storage_errors.DeniedError):
        return (
            f"{cause}; the bucket's credentials are those of this shell's environment, such as "
            "AWS_ACCESS_KEY_ID: set them to ones that may read and write the run's folder"
        )
    if isinstance(error, storage_errors.EndpointError | storage_errors.UnreachableError):
        return (
            f"{cause}; if only pods reach that endpoint, name another with --endpoint, in Python "
            "with Client(endpoint=…)"
        )
    return str(error)
