"""What status.progress says of single ranks."""

from .base import StatusModel


class SlowestRankStatus(StatusModel):
    """The rank for which the others wait longest."""

    rank: int
    """Its number."""
    node: str | None = None
    """Node on which it runs."""
    own_seconds: float
    """What a step takes it without waiting for other ranks, as the mean of the last steps."""
    median_seconds: float
    """Median of the same of all other ranks."""


class MemoryStatus(StatusModel):
    """The rank whose memory is, or will first be, full."""

    rank: int
    """Its number."""
    node: str | None = None
    """Node on which it runs."""
    used_bytes: int
    """Memory of its container that cannot be freed, without the cache of files."""
    limit_bytes: int | None = None
    """The container's limit."""
    bytes_per_hour: int | None = None
    """How fast it grows; none: it does not, or has not been seen for long enough."""


class RankStatus(StatusModel):
    """What one rank has measured last; what is absent it has not, or not yet."""

    rank: int
    """Its number."""
    node: str | None = None
    """Node on which it runs."""
    pod: str | None = None
    """Pod in which it runs."""
    step_seconds: float | None = None
    """What a step takes it, as the mean of the last steps."""
    data_wait_share: float | None = None
    """Share of the time in steps, from 0 to 1, in which it has waited for data since its worker
    group began."""
    communication_wait_share: float | None = None
    """Share of the time in steps, from 0 to 1, in which it waits for the gradients of other ranks:
    the rank that is waited for has the smallest one."""
    used_bytes: int | None = None
    """Memory of its container that cannot be freed, without the cache of files."""
    limit_bytes: int | None = None
    """The container's limit."""
    bytes_per_hour: int | None = None
    """How fast it grows; none: it does not, or has not been seen for long enough."""
    accelerator_share: float | None = None
    """Share of the last 5 minutes, from 0 to 1, in which its NVIDIA GPUs computed; none: it has
    none, or parts of them (MIG)."""
