"""What waits to be written by the driver's committer, in this order."""

from dataclasses import dataclass, field
from typing import Any

from .metrics_rows import Row


@dataclass(frozen=True)
class UploadedCheckpoint:
    """A checkpoint that all ranks have uploaded and that is not committed yet."""

    path: str
    """Its folder, as Ray names it: bucket and key, or the local path."""
    step: int
    """Steps done when it was made."""
    world_size: int
    """Workers that made it."""
    metrics: dict[str, Any]
    """Rank 0's, as reported with it."""
    group: int = field(default=0, compare=False)
    """Number of the worker group that made it, within the driver."""
    rows: tuple[Row, ...] = ()
    """Of a checkpoint that one rank alone has made: its newest reports."""
    ranks: tuple[int, ...] | None = None
    """Those that have uploaded a part, of a session's checkpoint; None: it is not a session's."""
    validated: bool = False
    """Whether a validation of Ray reads it, whose scores come later."""


@dataclass(frozen=True)
class LateMetrics:
    """Metrics that rank 0 reported after the checkpoint of their step was uploaded."""

    step: int
    """Steps done when they were reported."""
    metrics: dict[str, Any]
    """As JSON can carry them."""
    path: str | None = None
    """Folder of their checkpoint, as Ray names it; none: it is the newest one of the step."""
