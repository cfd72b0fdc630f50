"""A TrainingRun from Python, in a cluster or on this machine; the command line is written on it."""

from ..api.errors import RunError, RunFailedError
from .client import Client
from .errors import RunTimeoutError
from .run import Checkpoint, Event, Run

__all__ = [
    "Checkpoint",
    "Client",
    "Event",
    "Run",
    "RunError",
    "RunFailedError",
    "RunTimeoutError",
]
