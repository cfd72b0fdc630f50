"""The directory by whose files the processes of a pod communicate; see the run contract."""

import os
from pathlib import Path

from trainingrun_protocol.contract import STATE_DIRECTORY, STATE_DIRECTORY_ENV


def state_directory() -> Path:
    """The state directory of this pod; created if it is missing."""
    folder = Path(os.environ.get(STATE_DIRECTORY_ENV, STATE_DIRECTORY))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
