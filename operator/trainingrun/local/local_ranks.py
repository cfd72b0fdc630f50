"""What each rank of a run on this machine measures, for `trainingrun ranks NAME --local`."""

import json
from pathlib import Path
from typing import Any

from ..api.progress import Progress, RunState
from ..api.quantities import amount
from .local_error import LocalError

FILE = "ranks.json"
"""The ranks as they last reported, below the folder of a local run."""


def remember(root: Path, progress: Progress) -> None:
    """Keep what the ranks report now; a driver that starts has none yet."""
    if progress.state is RunState.STARTING and not progress.ranks:
        (root / FILE).unlink(missing_ok=True)
    if not progress.ranks:
        return
    kept = {"ranks": [row.to_dict() for row in progress.ranks], "warnings": progress.warnings}
    part = root / f".{FILE}"
    part.write_text(json.dumps(kept))
    part.replace(root / FILE)


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


def latest(root: Path) -> dict[str, Any]:
    """The ranks and warnings of the latest run in a folder, as status.progress has them.

    Raises:
        LocalError: there are none.
    """
    try:
        found: dict[str, Any] = json.loads((root / FILE).read_bytes())
    except (OSError, ValueError):
        raise LocalError(
            f"{root} holds nothing that ranks have reported; each rank of `trainingrun run FILE "
            "--local` does 10 s after its start; or name the run's folder with --folder"
        ) from None
    return found
