"""How full the memory of a rank's container is, and how fast it fills."""

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression

_CGROUPS = Path("/sys/fs/cgroup")
_SAMPLES = 60
"""Measurements that count; at one in 10 s those of ten minutes."""
_LEAST_S = 180.0
"""Seconds that measurements have to span: what a training needs at first is no growth."""


@dataclass(frozen=True)
class MemoryUse:
    """Memory in bytes."""

    used: int
    """Of the container, without the cache of files; without a limit, of this process."""
    limit: int | None
    """The container's limit, if it has one."""
    per_hour: int | None
    """How fast `used` grows; None: it does not, or has not been seen for long enough."""

    @property
    def hours_left(self) -> float:
        """Hours until the limit is reached at this rate."""
        if self.limit is None or not self.per_hour:
            return float("inf")
        return max(self.limit - self.used, 0) / self.per_hour


def read_memory(cgroups: Path = _CGROUPS) -> tuple[int, int | None]:
    """Bytes in use now, and the limit if there is one.

    Args:
        cgroups: where version 2 of the kernel's control groups is mounted.
    """
    try:
        own = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
        folder = cgroups / own
        limit = (folder / "memory.max").read_text().strip()
        if limit != "max":
            lines = (folder / "memory.stat").read_text().splitlines()
            parts = dict(line.split() for line in lines)
            cached = int(parts["inactive_file"]) + int(parts["active_file"])
            return max(int((folder / "memory.current").read_text()) - cached, 0), int(limit)
    except (OSError, KeyError, ValueError):
        pass  # no such control group, as in version 1
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), None


class MemoryGrowth:
    """How fast memory grows, from measurements of the last minutes; pure."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)

    def add(self, now: float, used: int) -> None:
        """A measurement of `used` bytes at `now` seconds."""
        self._seen.append((now, used))

    def per_hour(self) -> int | None:
        """Bytes an hour; None: it does not grow, or has not been seen for long enough.

        The slower of the growths of the older and of the newer half counts, so that what is
        allocated once, however large, is no growth.
        """
        seen = list(self._seen)
        if not seen or seen[-1][0] - seen[0][0] < _LEAST_S:
            return None
        middle = len(seen) // 2
        slope = min(_slope(seen[:middle]), _slope(seen[middle:]))
        return round(slope * 3600) if slope > 0 else None


def _slope(seen: Sequence[tuple[float, int]]) -> float:
    if len(seen) < 2:
        return 0.0
    times, used = zip(*seen, strict=True)
    return linear_regression(times, used).slope
