"""The progress documents that a driver writes without a coordinator."""

import time
from pathlib import Path
from typing import Any

from trainingrun_protocol.contract import PROGRESS_FILE, RunContract
from trainingrun_protocol.progress import Failure, Progress, ProgressResult, RunState

from ..progress import document as progress_document
from ..state_directory import state_directory


class Documents:
    """The progress documents of a driver whose coordinator does not run yet, or no longer."""

    def __init__(self, contract: RunContract, path: Path | None = None) -> None:
        self.path = path or state_directory() / PROGRESS_FILE
        self._attempt = contract.attempt
        self._storage_error_since: float | None = None

    def waiting(self, error: str | None) -> None:
        """Requests to the store fail with this error; None: no longer."""
        since = (self._storage_error_since or time.time()) if error else None
        self._storage_error_since = since
        self._write(RunState.STARTING, storage_error=error, storage_error_since=since)

    def succeeded(self, done: ProgressResult) -> None:
        """The run is done."""
        self._write(RunState.SUCCEEDED, result=done)

    def suspended(self) -> None:
        """The driver ends because of a suspend request."""
        self._write(RunState.SUSPENDED)

    def failed(self, failure: Failure) -> None:
        """The attempt failed."""
        self._write(RunState.FAILED, failure=failure)

    def _write(self, state: RunState, **facts: Any) -> None:
        progress = Progress(attempt=self._attempt, state=state, time=time.time(), **facts)
        progress_document.write(self.path, progress)
