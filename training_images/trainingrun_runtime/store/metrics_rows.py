"""The rows of the table on their way from the ranks to the bucket."""

from typing import Any, NamedTuple


class Row(NamedTuple):
    """What one call of `report` said."""

    step: int
    """Steps done, the one in which it was called included."""
    time: float
    """Unix time of the call, in seconds."""
    metrics: dict[str, Any]
    """As JSON can carry them."""


class Origin(NamedTuple):
    """Where a worker group began: a checkpoint of this run, and who made it."""

    fencing_token: int
    """Of the driver under which it was made."""
    group: int
    """Number of the worker group that made it, within that driver."""
    step: int
    """Steps done in it."""


class Batch(NamedTuple):
    """Rows that arrived together, of one worker group."""

    number: int
    """1, 2, 3 … within the driver."""
    group: int
    """Number of the worker group, within the driver."""
    origin: Origin | None
    """Where the group began; none: at the first step, or with another run's checkpoint."""
    rows: tuple[Row, ...]
    """May be none: the group has begun."""
