"""The trials of a sweep that runs, or has run, on this machine."""

import json
from pathlib import Path

from pydantic import ValidationError

from ..api.progress import Progress, RecordKind
from ..api.sweep_table import SweepTable
from .local_error import LocalError

FILE = "sweep.json"
"""The trials as the run last showed them, below the folder of a local run."""


class Losses:
    """What the trials have lost, from the successive progress documents. Pure."""

    def __init__(self) -> None:
        self.count = 0
        """Losses so far."""
        self._seen = (0, 0, 0)
        self._lost: set[str] = set()

    def record(self, progress: Progress) -> list[str]:
        """Evaluate one document; what is new: a loss, and where its trial continues."""
        said = []
        for record in progress.records:
            number = (progress.attempt, progress.fencing_token, record.number)
            if number <= self._seen:
                continue
            self._seen = number
            trial = record.message.partition(":")[0]
            if record.kind in (RecordKind.PREEMPTED, RecordKind.WORKER_LOST):
                self.count += 1
                self._lost.add(trial)
            elif record.kind is not RecordKind.RESTORED or trial not in self._lost:
                continue  # that a trial begins is no loss
            else:
                self._lost.discard(trial)
            said.append(record.message)
        return said


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
