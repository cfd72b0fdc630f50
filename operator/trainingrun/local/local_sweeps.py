"""The trials of a sweep that runs, or has run, on this machine."""

import json
from pathlib import Path

from pydantic import ValidationError

from ..api.progress import Progress
from ..api.sweep_table import SweepTable
from .local_error import LocalError

FILE = "sweep.json"
"""The trials as the run last showed them, below the folder of a local run."""


def remember(root: Path, progress: Progress) -> None:
    """Keep the trials for `trainingrun sweep NAME --local`."""
    table = progress.sweep or (progress.result.sweep if progress.result else None)
    if table is None:
        return
    part = root / f".{FILE}"
    part.write_text(json.dumps(table.to_dict()))
    part.replace(root / FILE)


def latest(root: Path) -> SweepTable:
    """The trials of the latest run in a folder.

    Raises:
        LocalError: there are none.
    """
    try:
        return SweepTable.model_validate_json((root / FILE).read_bytes())
    except (OSError, ValidationError):
        raise LocalError(
            f"{root} holds no trials; run a file with spec.sweep by `trainingrun run FILE "
            "--local`, or name its folder with --folder"
        ) from None
