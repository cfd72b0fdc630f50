"""What a rank reports to the coordinator's actor: its metrics, how fast it is, and what it uses."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from ..ray_internals.accelerators import GpuUtilization
from ..store.reported_metrics import Row
from . import looks
from .gradient_waits import GradientWaits
from .rank_measures import (
    AcceleratorSamples,
    ChildrenUse,
    MemoryGrowth,
    MemoryUse,
    QuietMeter,
    RankTimes,
    file_bytes,
    read_memory,
    read_oom_kills,
    traffic_bytes,
)

INTERVAL_S = 5.0
"""Seconds between two reports of times."""
USE_INTERVAL_S = 10.0
"""Seconds between two reports of memory and accelerators."""
_SAMPLES = 10
"""Measurements of CPU and traffic between two of them."""
_WINDOW = 12
"""Reports that a mean goes back."""
_OWN_THREAD = Path("/proc/thread-self")


class TimesReporter:
    """Reports, every `INTERVAL_S`, what a step takes this rank and for what it waits."""

    def __init__(self, coordinator: Any, rank: int, group: int, objects: Iterable[Any]) -> None:
        self._coordinator, self._rank, self._group = coordinator, rank, group
        self._waits = GradientWaits(objects)
        self._done: deque[tuple[int, float, float]] = deque(maxlen=_WINDOW)
        self._next = 0.0

    def report(self, step: int, productive_s: float, data_share: float | None) -> None:
        """A step was done; the call does not wait for the coordinator.

        Args:
            step: steps done.
            productive_s: seconds in steps so far.
            data_share: share of them in which this rank has waited for data; None: not measured.
        """
        self._waits.read(step)
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + INTERVAL_S
        waited_s = (data_share or 0.0) * productive_s
        self._done.append((step, productive_s, waited_s))
        first_step, first_s, first_waited_s = self._done[0]
        steps = step - first_step
        times = RankTimes(
            step_s=(productive_s - first_s) / steps if steps else None,
            wait_s=self._waits.per_step_s(),
            data_share=data_share,
            data_s=(waited_s - first_waited_s) / steps
            if steps and data_share is not None
            else None,
        )
        self._coordinator.rank_times.remote(self._rank, self._group, times)


class UseReporter:
    """Reports memory and accelerators until it is closed; also of code without a session."""

    def __init__(self, coordinator: Any, rank: int, group: int) -> None:
        self._coordinator, self._rank, self._group = coordinator, rank, group
        self._growth = MemoryGrowth()
        self._gpus, self._samples = GpuUtilization(), AcceleratorSamples()
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="use", daemon=True).start()

    def close(self) -> None:
        """Report no more."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                self._keep_reporting()
            except Exception:  # of a device or of Ray: the next report may be well
                log.exception("memory and accelerators were not reported")
                self._ended.wait(USE_INTERVAL_S)

    def _keep_reporting(self) -> None:
        samples, children = 0, ChildrenUse()
        own, others = QuietMeter(time.monotonic()), QuietMeter(time.monotonic())
        while not self._ended.wait(USE_INTERVAL_S / _SAMPLES):
            samples += 1
            reports = samples % _SAMPLES == 0
            share = self._gpus.read() if reports else None
            now = time.monotonic()
            # Without what this thread uses.
            cpu_s = time.process_time() - time.thread_time()
            files = file_bytes() - file_bytes(_OWN_THREAD)
            own.add(now, cpu_s, traffic_bytes(), share, looks.bytes_sent(), files=files)
            if not reports:
                continue
            cpu_s, files = children.read()  # looks through all processes, which takes a while
            others.add(now, cpu_s, files=files)
            used, limit = read_memory()
            self._growth.add(now, used)
            memory = MemoryUse(used, limit, self._growth.per_hour(), read_oom_kills())
            use = self._samples.add(now, share) if share is not None else None
            work_s = min(own.quiet(now).work_s, others.quiet(now).work_s)
            quiet = replace(own.quiet(now), work_s=work_s)
            self._coordinator.rank_use.remote(self._rank, self._group, memory, use, quiet)


log = logging.getLogger(__name__)

RECENT = 1000
"""Newest rows that each rank keeps, for the case that rank 0 is lost before it has sent its own."""
_UNSENT = 100_000
"""Rows that wait on rank 0 at most, while the coordinator does not answer."""
_PENDING = 100
"""Calls that `flush` waits for; older ones have arrived long before."""
_FLUSH_S = 10.0


class ReportRecorder:
    """The reports of one rank, of which rank 0 sends its own; training only appends to a queue."""

    def __init__(self, coordinator: Any, rank: int, group: int) -> None:
        self._coordinator, self._group, self._sends = coordinator, group, rank == 0
        self._recent: deque[Row] = deque(maxlen=RECENT)
        self._unsent: deque[Row] = deque(maxlen=_UNSENT)
        self._pending: deque[Any] = deque(maxlen=_PENDING)
        self._sending = threading.Lock()
        if self._sends:
            coordinator.session_began.remote(group)

    def record(self, step: int, metrics: dict[str, Any]) -> None:
        """The training code has reported these metrics; the dictionary is not changed later."""
        row = Row(step, time.time(), metrics)
        self._recent.append(row)
        if self._sends:
            self._unsent.append(row)

    def recent(self, last_step: int) -> tuple[Row, ...]:
        """The newest rows of this rank, up to a step."""
        return tuple(row for row in self._recent.copy() if row.step <= last_step)

    def send(self) -> None:
        """Send what is not sent yet; returns without an answer."""
        with self._sending:  # so that `flush` knows every call that was begun
            rows = []
            while self._unsent:
                rows.append(self._unsent.popleft())
            if rows:
                self._pending.append(self._coordinator.add_rows.remote(self._group, rows))

    def flush(self) -> None:
        """Return once everything recorded until now has arrived, or after 10 s; never raises."""
        try:
            self.send()
            with self._sending:
                pending = list(self._pending)
            ray.get(pending, timeout=_FLUSH_S)
        except Exception as error:  # training does not depend on the table
            log.warning("reported metrics did not reach the coordinator: %s", error)
