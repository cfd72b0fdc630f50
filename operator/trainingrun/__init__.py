"""The TrainingRun operator, its API, its command line and its client in Python."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Client, Run, RunError, RunFailedError, RunTimeoutError

__all__ = ["Client", "Run", "RunError", "RunFailedError", "RunTimeoutError"]


def __getattr__(name: str) -> Any:
    """The client is loaded where it is used: the operator and the runtime need nothing of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from . import client
    except ModuleNotFoundError as error:
        raise ImportError(f"{error.name} is not installed; install trainingrun[cli]") from error
    return getattr(client, name)
