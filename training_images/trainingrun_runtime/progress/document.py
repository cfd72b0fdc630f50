"""The progress document: a JSON file that the driver replaces and the server serves. No Ray."""

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from trainingrun_protocol.contract import CONTRACT_ENV, PROGRESS_FILE
from trainingrun_protocol.exit_codes import FAILED_EXIT_CODE
from trainingrun_protocol.progress import Failure, Progress, ProgressResult, RunState

from ..state_directory import state_directory

log = logging.getLogger(__name__)


def write(path: str | Path, progress: Progress) -> None:
    """Replace the document. A reader sees the old one or the new one, never half of one."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    part.write_text(json.dumps(progress.to_dict(), allow_nan=False))
    part.replace(target)


def read(path: str | Path) -> Progress | None:
    """The document, or none before the driver wrote one."""
    try:
        return Progress.model_validate_json(Path(path).read_bytes())
    except FileNotFoundError:
        return None


class Documents:
    """The progress documents of a driver whose coordinator does not run yet, or no longer."""

    def __init__(self, attempt: int, path: Path | None = None) -> None:
        self.path = path or state_directory() / PROGRESS_FILE
        self._attempt = attempt
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

    def failed(self, failure: Failure, report_uri: str | None = None) -> None:
        """The attempt failed; where its page is, if it has one."""
        self._write(RunState.FAILED, failure=failure, report_uri=report_uri)

    def document(self, state: RunState, **facts: Any) -> Progress:
        """Where the driver stands now."""
        return Progress(attempt=self._attempt, state=state, time=time.time(), **facts)

    def _write(self, state: RunState, **facts: Any) -> None:
        write(self.path, self.document(state, **facts))


def report_unusable_image(sentence: str) -> int:
    """Write to the document and log why this image cannot train; returns the exit code.

    Of the contract only the attempt's number is read, which every version has.
    """
    log.error("%s", sentence)
    attempt = json.loads(os.environ[CONTRACT_ENV])["attempt"]
    failure = Failure(kind="Application", message=sentence, retry="UnlessRepeated")
    Documents(attempt).failed(failure)
    return FAILED_EXIT_CODE
