"""What `trainingrun ranks` prints: a line for each rank. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..api.progress import MOST_RANKS
from ..api.status import Phase
from ..local import tables

Rank = Mapping[str, Any]

_GIB = 2**30
HEADS = ("RANK", "STEP", "OWN", "DATA%", "COMM%", "MEMORY", "LIMIT", "GROWTH/H")
"""Seconds of a step; those without the wait for other ranks; the shares of it that go into waiting
for data and for gradients of other ranks; memory."""
PLACE = ("NODE", "POD")
"""Last, since their names are long: the numbers of a rank stay on one line."""
GPU = "GPU%"
"""Share of the last minutes in which the GPUs of a rank computed, where one measures it."""


def ranks(found: Sequence[Rank], width: int | None) -> str:
    """One line per rank, as in status.progress.ranks; what is not known is left empty.

    Args:
        found: The ranks.
        width: Columns of the terminal; None: no limit.
    """
    gpus = (GPU,) if any("acceleratorShare" in rank for rank in found) else ()
    rows = [
        (
            rank["rank"],
            _seconds(rank.get("stepSeconds")),
            _seconds(_own(rank)),
            _percent(rank.get("dataWaitShare")),
            _percent(rank.get("communicationWaitShare")),
            _gib(rank.get("usedBytes")),
            _gib(rank.get("limitBytes")),
            _gib(rank.get("bytesPerHour")),
            *(_percent(rank.get("acceleratorShare")) for _ in gpus),
            rank.get("node") or "",
            rank.get("pod") or "",
        )
        for rank in found
    ]
    return tables.table((*HEADS, *gpus, *PLACE), rows, width)


def left_out(found: Sequence[Rank], spec: Mapping[str, Any]) -> str | None:
    """Which ranks of a run with this spec are not shown, in a sentence; None: all are."""
    workers = spec.get("workers", {}).get("count", 1)
    if len(found) >= workers:
        return None
    if len(found) < MOST_RANKS:
        return f"{len(found)} of {workers} ranks have reported."
    return (
        f"{len(found)} of {workers} ranks: those that are slowest, wait most for data, have the "
        "fullest memory or the idlest accelerators."
    )


def without_steps(found: Sequence[Rank]) -> str | None:
    """What step times need, in a sentence, where no rank has any."""
    if not found or any("stepSeconds" in rank for rank in found):
        return None
    return "Step times and waits need a session: see docs/training.md."


def why_none(run: Mapping[str, Any]) -> str:
    """Why the status has no ranks, in a sentence."""
    name, phase = run["metadata"]["name"], (run.get("status") or {}).get("phase")
    if run["spec"].get("sweep"):
        return f"The status has no ranks of trials; `trainingrun sweep {name}` shows the trials."
    if phase != Phase.RUNNING:
        return f"{name} is {phase or 'new'}; ranks report while they train."
    return f"No rank of {name} has reported yet; each one does 10 s after its start."


def _own(rank: Rank) -> float | None:
    step, waits = rank.get("stepSeconds"), rank.get("communicationWaitShare")
    return None if step is None or waits is None else step * (1 - waits)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} s"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / _GIB:.1f} GiB"
