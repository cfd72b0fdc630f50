"""What a rank measures of its steps, its memory and its accelerators."""

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, linear_regression


@dataclass(frozen=True)
class RankTimes:
    """Means of the last minute."""

    step_s: float | None
    """Seconds of a step; None: not known yet."""
    wait_s: float | None
    """Seconds of a step in which it waits for gradients of other ranks; None: not known."""
    data_share: float | None
    """Share of the time in steps in which it waits for data, since the group began; None: not
    measured."""
    data_s: float | None = None
    """Seconds of a step in which it waits for data; None: not measured, or not known yet."""

    @property
    def own_s(self) -> float | None:
        """Seconds of a step in which it does not wait for other ranks."""
        if self.step_s is None or self.wait_s is None:
            return None
        return max(self.step_s - self.wait_s, 0.0)

    @property
    def wait_share(self) -> float | None:
        """Share of a step in which it waits for gradients of other ranks."""
        if not self.step_s or self.wait_s is None:
            return None
        return min(self.wait_s / self.step_s, 1.0)


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


WINDOW_S = 300.0
"""Seconds over which the mean use of accelerators goes."""


@dataclass(frozen=True)
class AcceleratorUse:
    """What a rank has measured of its accelerators."""

    share: float
    """Share of the time in which they computed, as the mean of the last minutes."""
    seconds: float
    """How long these minutes are."""


class AcceleratorSamples:
    """The samples of the last minutes."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, now: float, share: float) -> AcceleratorUse:
        """A sample at `now` seconds; the mean until then."""
        self._seen.append((now, share))
        while self._seen[0][0] < now - WINDOW_S:
            self._seen.popleft()
        return AcceleratorUse(fmean(share for _, share in self._seen), now - self._seen[0][0])
