"""What waits to be written by the driver's committer, in this order."""

from dataclasses import dataclass
from typing import Any


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


@dataclass(frozen=True)
class LateMetrics:
    """Metrics that rank 0 reported after the checkpoint of their step was uploaded."""

    step: int
    """Steps done when they were reported."""
    metrics: dict[str, Any]
    """As JSON can carry them."""
