"""Runs a user's script in the driver's process, as Python itself would run it."""

import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from trainingrun.api.contract import CONFIG_ENV

from .failed_start import FAILED


def run(script: str, arguments: Sequence[str], config: Mapping[str, Any]) -> None:
    """Run the script as `__main__`; what it raises is raised.

    Args:
        script: its path.
        arguments: on its command line.
        config: `training.config`, for its environment.
    """
    path = Path(script)
    os.environ.setdefault(CONFIG_ENV, json.dumps(config))
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    _fail_on_os_exit()
    runpy.run_path(str(path), run_name="__main__")


def _fail_on_os_exit() -> None:
    """Make `os._exit(0)` in a script exit with `FAILED`: 0 means that the run is done."""
    exit_now, driver = os._exit, os.getpid()

    def exit_checked(code: int) -> NoReturn:
        exit_now(code if code or os.getpid() != driver else FAILED)  # not in a forked child

    os._exit = exit_checked  # type: ignore[assignment]
