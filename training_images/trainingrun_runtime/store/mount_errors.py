"""Errors of a mounted folder, each as one sentence that a user can act on."""

import errno
import os

from .storage_errors import (
    AbsentError,
    DeniedError,
    StorageError,
    StoreFullError,
    TakenError,
    UnreachableError,
    UnusableError,
)

_NO_ANSWER = {
    *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EREMOTEIO, errno.ENODEV),
    *(errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED),
    *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
}
"""What a mount says whose server is gone, or has other files than before."""
_NEVER = {errno.ENAMETOOLONG, errno.EISDIR, errno.ELOOP, errno.ENOTSUP, errno.ENOSYS}


def explain(error: OSError, at: str) -> StorageError:
    """Translate an error of the operating system.

    Args:
        error: What was raised; a `TimeoutError` without a number: it has not answered at all.
        at: The folder's URI, for the sentence.
    """
    found = _explained(error, at, errno.errorcode.get(error.errno or 0, "no answer"))
    found.mounted = True
    return found


def _explained(error: OSError, at: str, name: str) -> StorageError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return AbsentError(f"there is no such object in {at}")
    if isinstance(error, FileExistsError):
        return TakenError(f"there is such an object in {at}")
    if error.errno == errno.EROFS:
        return DeniedError(f"{at} is mounted read-only; have the claim mounted for writing")
    if isinstance(error, PermissionError):
        return DeniedError(
            f"user {os.getuid()} may not use {at} ({name}); give the claim's folder to that user "
            "or to the pods' fsGroup, or set securityContext in podTemplate"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFullError(
            f"{at} is full ({name}); free space there, or enlarge the claim or its quota"
        )
    if error.errno in _NO_ANSWER or isinstance(error, TimeoutError):
        return UnreachableError(
            f"{at} does not answer ({name}); check the server of the claim's volume and the network"
        )
    if error.errno in _NEVER:
        return UnusableError(f"{at} cannot be used: {error.strerror}")
    return StorageError(f"{at} answered with an error: {error.strerror}")
