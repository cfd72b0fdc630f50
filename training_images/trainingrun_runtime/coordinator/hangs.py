"""For how long the ranks have done nothing, and what was found of it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainingrun_protocol.contract import BUSY_AUTO_S, ContractHang
from trainingrun_protocol.progress import Hang

from ..progress.rank_measures import Quiet
from ..progress.time_accounting import FIRST_STEPS, StepReport

SHORTEST_AUTO_S = 300.0
SHORTEST_IDLE_S = 25.0
"""Where use of CPU, GPU, network and files counts, of which the ranks tell every 10 s: of two
reports one may be late."""
LONGEST_STEPS = 10
"""`auto`: so many times the longest of the last steps."""
TICK_S = 1.0
GAP_S = 10.0
"""A longer wait between two ticks means that this process itself did not run."""


@dataclass(frozen=True)
class Silence:
    """Of a worker group that trains."""

    group: int
    """Its number."""
    seconds: float
    """For how long there has been no sign of work."""
    limit_s: float
    """So many are a hang."""

    @property
    def is_hang(self) -> bool:
        """Whether it lasts too long."""
        return self.seconds >= self.limit_s


class HangClock:
    """Counts the seconds without a sign of work; pure.

    A step is one in any case, and so is much traffic: a download, or an upload that goes on. While
    a rank is in a step of its session, that is all: it may hang and compute. Elsewhere, and in the
    first steps, nobody knows how long what goes on may take; so the use of CPU, GPU and files
    is one too.

    Args:
        settings: of the run.
        now: all times are seconds of one monotonic clock.
    """

    def __init__(self, settings: ContractHang, now: float) -> None:
        self._after_s = settings.after_seconds
        self._group = 0
        self._trains = self._in_step = False
        self._steps = self._last_step = 0
        self._longest_s = 0.0
        self._stepped = self._moved = self._worked = now
        self._ran: float | None = None

    @property
    def group(self) -> int | None:
        """Number of the group whose time counts; None: none trains."""
        return self._group if self._trains else None

    def group_started(self, now: float, group: int, step: int) -> None:
        """A worker group begins, at this step."""
        self._group, self._trains, self._in_step = group, True, False
        self._steps, self._last_step = 0, step
        self._stepped = self._moved = self._worked = now

    def group_ended(self) -> None:
        """The worker group trains no more."""
        self._trains = False

    def stepped(self, now: float, report: StepReport) -> None:
        """Rank 0 tells its steps, the same again where there is none."""
        if report.group != self._group:
            return
        self._in_step, self._longest_s = report.in_step, report.longest_s
        if report.step > self._last_step:
            self._steps += report.step - self._last_step
            self._last_step = report.step
            self._stepped = max(self._stepped, now)

    def sign(self, now: float) -> None:
        """Something was done, or nothing is expected until then."""
        self._stepped = max(self._stepped, now)

    def quiet(self, now: float, group: int, quiet: Quiet) -> None:
        """A rank tells for how long it has done nothing."""
        if group == self._group:
            self._moved = max(self._moved, now - quiet.traffic_s)
            self._worked = max(self._worked, now - quiet.work_s)

    def runs(self, now: float) -> None:
        """This process runs. Tell it every `TICK_S`, from a thread that does nothing else: what a
        thread is late with that has other work as well says nothing about the process.
        """
        self._after_gap(now)
        self._ran = now

    def _after_gap(self, now: float) -> None:
        if self._ran is not None and now - self._ran > GAP_S:
            self.sign(now)

    def silence(self, now: float) -> Silence | None:
        """For how long nothing has been done; None: no group trains."""
        self._after_gap(now)  # it may be asked before the first tick that follows
        if not self._trains:
            return None
        since = max(self._stepped, self._moved)
        idle = self._silence(now - max(since, self._worked), SHORTEST_AUTO_S, SHORTEST_IDLE_S)
        if not (self._in_step and self._steps >= FIRST_STEPS):
            return idle
        busy = self._silence(now - since, BUSY_AUTO_S)
        return min(idle, busy, key=lambda found: found.limit_s - found.seconds)

    def _silence(self, seconds: float, shortest_auto_s: float, shortest_s: float = 0.0) -> Silence:
        limit_s = self._after_s
        if limit_s is None:
            limit_s = max(shortest_auto_s, LONGEST_STEPS * self._longest_s)
        return Silence(self._group, max(seconds, 0.0), max(limit_s, shortest_s))


class Hangs:
    """The clock of the worker group, and the latest hang. One lock guards all of it."""

    def __init__(self, settings: ContractHang, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock, self._clock = threading.Lock(), clock
        self._hangs = HangClock(settings, clock())
        self._found: Hang | None = None
        self._ended_group: int | None = None
        self._stuck_pods: tuple[str, ...] = ()

    def keep_time(self, ended: threading.Event) -> None:
        """The thread of the clock, until `ended`."""
        while not ended.wait(TICK_S):
            self.runs()

    def runs(self) -> None:
        """This process runs; see `HangClock.runs`."""
        with self._lock:
            self._hangs.runs(self._clock())

    def joins(self, group: int) -> None:
        """A rank has begun, before it imports the user's code and restores a checkpoint.

        The first one of a group counts. A group that has never begun to train leaves its number to
        the next one.
        """
        with self._lock:
            if self._hangs.group != group:
                self._begin(group, 0)
                self._ended_group = None

    def begin(self, group: int, step: int) -> None:
        """A worker group begins."""
        with self._lock:
            self._begin(group, step)

    def _begin(self, group: int, step: int) -> None:
        self._hangs.group_started(self._clock(), group, step)
        self._over()

    def group_ended(self) -> None:
        """The worker group trains no more."""
        with self._lock:
            self._hangs.group_ended()

    def stepped(self, report: StepReport) -> None:
        """Rank 0 tells its steps."""
        with self._lock:
            self._hangs.stepped(self._clock(), report)

    def sign(self) -> None:
        """Something was done that is no step of a session."""
        with self._lock:
            self._hangs.sign(self._clock())

    def quiet(self, group: int, quiet: Quiet) -> None:
        """A rank tells for how long it has done nothing."""
        with self._lock:
            self._hangs.quiet(self._clock(), group, quiet)

    def allow_pause(self, seconds: float) -> None:
        """A worker: for so long no step is no hang."""
        with self._lock:
            self._hangs.sign(self._clock() + seconds)

    def silence(self) -> Silence | None:
        """The driver: for how long the ranks have done nothing; None: none trains."""
        with self._lock:
            found = self._hangs.silence(self._clock())
            if found is not None and not found.is_hang:
                self._over()
            return found

    def hung(self, group: int, hang: Hang, ended: bool) -> None:
        """The driver: this group hangs; `ended`: a process of it is ended next."""
        with self._lock:
            self._found = hang
            self._ended_group = group if ended else None

    def stuck(self, pods: tuple[str, ...]) -> None:
        """The driver: processes in these pods cannot be ended."""
        with self._lock:
            self._stuck_pods = pods

    def hang_of(self, group: int) -> Hang | None:
        """Ray's controller: the hang for which this group was ended; None: it was not."""
        with self._lock:
            return self._found if self._ended_group == group else None

    def fields(self) -> dict[str, Any]:
        """Of the progress document."""
        with self._lock:
            return {"hang": self._found, "stuck_pods": list(self._stuck_pods)}

    def _over(self) -> None:
        self._stuck_pods = ()
        if self._found is not None and self._found.under_way:
            self._found = self._found.model_copy(update={"under_way": False})
