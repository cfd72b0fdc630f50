"""An attempt that ends before it has begun: nothing of Ray is loaded."""

import logging
import os
import time

from trainingrun.api.contract import (
    CONTRACT_ENV,
    PROGRESS_FILE,
    Failure,
    Progress,
    RunContract,
    RunState,
)

from .coordination.preemption_notice import state_folder
from .progress import document as progress_document

log = logging.getLogger(__name__)

REFUSED = 1
"""The driver's exit code; `failure` of the progress document says why."""


def refuse(sentence: str) -> int:
    """Say in the progress document, and in the log, why this image cannot train the run."""
    log.error("%s", sentence)
    contract = RunContract.model_validate_json(os.environ[CONTRACT_ENV])
    failure = Failure(kind="Application", message=sentence)
    final = Progress(
        attempt=contract.attempt, state=RunState.FAILED, time=time.time(), failure=failure
    )
    progress_document.write(state_folder() / PROGRESS_FILE, final)
    return REFUSED
