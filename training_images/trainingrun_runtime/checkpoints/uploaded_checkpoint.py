"""A checkpoint that all ranks have uploaded and that is not committed yet."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class UploadedCheckpoint:
    """See the module."""

    path: str
    """Its folder, as Ray names it: bucket and key, or the local path."""
    step: int
    """Steps done when it was made."""
    world_size: int
    """Workers that made it."""
    metrics: dict[str, Any]
    """Rank 0's, as reported with it."""
