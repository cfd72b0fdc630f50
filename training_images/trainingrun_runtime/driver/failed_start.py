"""The end of an attempt whose image cannot be used; imports no Ray."""

import logging
import os
import time

from trainingrun_protocol.contract import CONTRACT_ENV, PROGRESS_FILE, RunContract
from trainingrun_protocol.exit_codes import FAILED_EXIT_CODE
from trainingrun_protocol.progress import Failure, Progress, RunState

from ..progress import document as progress_document
from ..state_directory import state_directory

log = logging.getLogger(__name__)


def report(sentence: str) -> int:
    """Write to progress document and log why this image cannot train; returns the exit code."""
    log.error("%s", sentence)
    contract = RunContract.model_validate_json(os.environ[CONTRACT_ENV])
    failure = Failure(kind="Application", message=sentence)
    final = Progress(
        attempt=contract.attempt, state=RunState.FAILED, time=time.time(), failure=failure
    )
    progress_document.write(state_directory() / PROGRESS_FILE, final)
    return FAILED_EXIT_CODE
