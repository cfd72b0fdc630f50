"""What a rank measures of its steps, its memory and its accelerators."""

import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, linear_regression

import psutil


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


@dataclass(frozen=True)
class Quiet:
    """For how long a rank has done nothing that can be seen from outside."""

    work_s: float
    """Seconds in which it, what it has started, and its accelerators computed nothing, and read and
    wrote little."""
    traffic_s: float
    """Seconds in which its pod sent and received little."""


WORKS_SHARE = 0.05
"""Share of a CPU above which a process works: the threads that Ray and this package have in it use
less."""
TRAFFIC_BYTES_S = 100_000
"""Bytes a second above which something is transferred: heartbeats and empty reports are less. Of
files an idle rank reads and writes some hundred, and what it prints."""

LOOK_S = 10.0
"""Seconds within which stacks are sent, once they are said to be."""


class QuietMeter:
    """How long a rank has been quiet, from counters that only grow; pure.

    Args:
        now: seconds of a monotonic clock, as everywhere.
    """

    def __init__(self, now: float) -> None:
        self._worked = self._moved = self._looked = now
        self._before: tuple[float, float, int, int] | None = None
        self._looks = self._expected = 0

    def add(
        self,
        now: float,
        cpu_s: float,
        traffic: int = 0,
        accelerators: float | None = None,
        looks: int = 0,
        files: int = 0,
    ) -> None:
        """A measurement.

        Args:
            now: when it was made.
            cpu_s: CPU seconds used so far.
            traffic: bytes sent and received so far.
            accelerators: share of the last moment in which they computed; None: not known.
            looks: bytes of the traffic, soon or so far, that are stacks of ranks.
            files: bytes of files read and written so far. What a pod moves to and from a claim is
                not in its traffic: the node has mounted it.
        """
        if self._before is None:
            self._looks = looks
        elif looks > self._looks:
            self._expected, self._looked = self._expected + looks - self._looks, now
            self._looks = looks
        elif now - self._looked > LOOK_S:
            self._expected = 0
        if self._before is not None:
            then, cpu_before_s, traffic_before, files_before = self._before
            passed_s = max(now - then, 1e-3)
            computes = (cpu_s - cpu_before_s) / passed_s > WORKS_SHARE
            # No traffic, which counts in a step, too: what hangs may print.
            stores = (files - files_before) / passed_s > TRAFFIC_BYTES_S
            if computes or stores or (accelerators or 0.0) > 0:
                self._worked = now
            moved = traffic - traffic_before
            expected = max(min(moved, self._expected), 0)
            self._expected -= expected
            if (moved - expected) / passed_s > TRAFFIC_BYTES_S:
                self._moved = now
        self._before = now, cpu_s, traffic, files

    def quiet(self, now: float) -> Quiet:
        """For how long it has been quiet."""
        return Quiet(now - self._worked, now - self._moved)


class ChildrenUse:
    """What the processes use that this one has started, and those that they have started."""

    def __init__(self) -> None:
        self._before: dict[psutil.Process, tuple[float, int]] = {}
        self._cpu_s, self._files = 0.0, 0

    def read(self) -> tuple[float, int]:
        """CPU seconds, and bytes of files, of those that were seen so far: both only grow."""
        found = {}
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                times = child.cpu_times()
                found[child] = times.user + times.system, file_bytes(Path(f"/proc/{child.pid}"))
        for child, (cpu_s, files) in found.items():
            cpu_before_s, files_before = self._before.get(child, (0.0, 0))
            self._cpu_s += max(cpu_s - cpu_before_s, 0.0)
            self._files += max(files - files_before, 0)
        self._before = found
        return self._cpu_s, self._files


def file_bytes(process: Path = Path("/proc/self")) -> int:
    """Bytes that a process or thread has read and written, of pipes too; 0: not known.

    Args:
        process: the kernel's folder of it.
    """
    with suppress(OSError, ValueError):
        counters = dict(line.split(": ") for line in (process / "io").read_text().splitlines())
        return int(counters.get("rchar", 0)) + int(counters.get("wchar", 0))
    return 0


def traffic_bytes(table: Path = Path("/proc/net/dev")) -> int:
    """Bytes that this pod has sent and received, without those to itself; 0: not known.

    Args:
        table: the kernel's counters of this network namespace.
    """
    total = 0
    with suppress(OSError, ValueError, IndexError):
        for line in table.read_text().splitlines()[2:]:
            name, _, counters = line.partition(":")
            if name.strip() != "lo":
                fields = counters.split()
                total += int(fields[0]) + int(fields[8])
    return total


_CGROUPS = Path("/sys/fs/cgroup")
_MOST_LIMIT = 2**60
"""Bytes; version 1 says a larger number where there is no limit."""
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
    oom_kills: int | None = None
    """See `read_oom_kills`."""

    @property
    def hours_left(self) -> float:
        """Hours until the limit is reached at this rate."""
        if self.limit is None or not self.per_hour:
            return float("inf")
        return max(self.limit - self.used, 0) / self.per_hour


def read_memory(
    cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")
) -> tuple[int, int | None]:
    """Bytes in use now, and the limit if there is one.

    Args:
        cgroups: where the kernel's control groups are mounted, of version 1 or 2.
        own: which of them this process is in.
    """
    for group in _memory_groups(cgroups, own):
        with suppress(OSError, KeyError, ValueError):
            one = (group / "memory.limit_in_bytes").exists()
            limit = (group / ("memory.limit_in_bytes" if one else "memory.max")).read_text()
            if limit.strip() == "max" or int(limit) > _MOST_LIMIT:
                break
            used = int((group / ("memory.usage_in_bytes" if one else "memory.current")).read_text())
            lines = (group / "memory.stat").read_text().splitlines()
            parts = dict(line.split() for line in lines)
            cached = int(parts["inactive_file"]) + int(parts["active_file"])
            return max(used - cached, 0), int(limit)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), None


def read_oom_kills(cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Processes of this container that the kernel has ended for want of memory; None: not known.

    Args:
        cgroups: where the kernel's control groups are mounted, of version 1 or 2.
        own: which of them this process is in.
    """
    for group in _memory_groups(cgroups, own):
        for file in (group / "memory.oom_control", group / "memory.events"):
            with suppress(OSError, ValueError, KeyError):
                counters = dict(line.split() for line in file.read_text().splitlines())
                return int(counters["oom_kill"])
    return None


def _memory_groups(cgroups: Path, own: Path) -> list[Path]:
    """Where the control group of this container may be.

    It sees it by its name on the node, or has its own one mounted as the root.
    """
    names = {}
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            names[controllers] = name.lstrip("/")
    first, second = cgroups / "memory", cgroups
    return [first / names.get("memory", ""), first, second / names.get("", ""), second]


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
