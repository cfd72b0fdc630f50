"""What ranks and trials of a run on this machine report, for `ranks` and `sweep` with --local."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainingrun_protocol.progress import Progress, RecordKind, RunState, SweepTable

from ..api.quantities import amount
from .machine import LocalError

RANKS_FILE = "ranks.json"
"""The ranks as they last reported, below the folder of a local run."""


def remember_ranks(root: Path, progress: Progress) -> None:
    """Keep what the ranks report now; a driver that starts has none yet."""
    if progress.state is RunState.STARTING and not progress.ranks:
        (root / RANKS_FILE).unlink(missing_ok=True)
    if not progress.ranks:
        return
    kept = {"ranks": [row.to_dict() for row in progress.ranks], "warnings": progress.warnings}
    part = root / f".{RANKS_FILE}"
    part.write_text(json.dumps(kept))
    part.replace(root / RANKS_FILE)


def beyond_memory(progress: Progress, memory: str) -> dict[int, str]:
    """The ranks that a cluster would end, and a sentence for each.

    Args:
        progress: what the ranks report; one in a container that has a limit tells what all of its
            processes use, and is left out.
        memory: workers.resources.memory.
    """
    return {
        row.rank: f"rank {row.rank} uses {row.used_bytes / 2**30:.1f} GiB of {memory}, "
        "workers.resources.memory, at which a cluster would end it"
        for row in progress.ranks
        if row.limit_bytes is None and row.used_bytes and row.used_bytes > amount(memory)
    }


def latest_ranks(root: Path) -> dict[str, Any]:
    """The ranks and warnings of the latest run in a folder, as status.progress has them.

    Raises:
        LocalError: there are none.
    """
    try:
        found: dict[str, Any] = json.loads((root / RANKS_FILE).read_bytes())
    except (OSError, ValueError):
        raise LocalError(
            f"{root} holds nothing that ranks have reported; each rank of `trainingrun run FILE "
            "--local` does 10 s after its start; or name the run's folder with --folder"
        ) from None
    return found


SWEEP_FILE = "sweep.json"
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
        new = []
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
            new.append(record.message)
        return new


def remember_sweep(root: Path, progress: Progress) -> None:
    """Keep the trials for `trainingrun sweep NAME --local`."""
    table = progress.sweep or (progress.result.sweep if progress.result else None)
    if table is None:
        return
    part = root / f".{SWEEP_FILE}"
    part.write_text(json.dumps(table.to_dict()))
    part.replace(root / SWEEP_FILE)


def latest_sweep(root: Path) -> SweepTable:
    """The trials of the latest run in a folder.

    Raises:
        LocalError: there are none.
    """
    try:
        return SweepTable.model_validate_json((root / SWEEP_FILE).read_bytes())
    except (OSError, ValidationError):
        raise LocalError(
            f"{root} holds no trials; run a file with spec.sweep by `trainingrun run FILE "
            "--local`, or name its folder with --folder"
        ) from None
