"""Lines that ranks and the driver of a run print: which are wanted, and those of two sources."""

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from ..api.errors import RunError
from ..api.status import Phase
from ..local.run_line import phase
from . import following

POLL_S = 2.0
"""Between two looks for new lines."""
_LATER_S = 2.0
"""Seconds between the times of one line in the folder and in the pod's log, at most."""


class Printed(NamedTuple):
    """A line of a rank or of the driver."""

    time: float
    """Unix time in seconds."""
    rank: int | None
    """None: the driver."""
    text: str
    """Without the end of the line."""

    def __str__(self) -> str:
        """The line as `trainingrun logs` prints it."""
        return f"[{'driver' if self.rank is None else f'rank {self.rank}'}] {self.text}"


class Batch(NamedTuple):
    """Lines that are there at once."""

    lines: list[Printed]
    """By their time."""
    heading: str = ""
    """What failed first, which comes before them; whole lines."""


@dataclass(frozen=True)
class Selection:
    """Which lines are wanted."""

    rank: int | None = None
    driver: bool = False
    trial: int | None = None
    attempt: int | None = None
    since_s: float | None = None
    grep: re.Pattern[str] | None = None
    tail: int = field(default=1000, compare=False)
    """Of each rank and of the driver; 0: of what is there already nothing."""

    def __post_init__(self) -> None:
        """Refuse what would be taken for other lines than the last ones.

        Raises:
            RunError: `tail` is no number of lines.
        """
        if self.tail < 0:
            raise RunError(f"tail is {self.tail}; give a number of lines, or 0 for none")

    def takes(self, rank: int | None) -> bool:
        """Whether lines of that rank, or of the driver, are wanted."""
        if self.driver or self.rank is not None:
            return rank == self.rank if self.rank is not None else rank is None
        return True

    def wants(self, text: str) -> bool:
        """Whether a line is wanted that says this."""
        return self.grep is None or self.grep.search(text) is not None

    @property
    def since(self) -> float:
        """Unix time in seconds; older lines are not wanted."""
        if not self.tail:
            return math.inf  # nor those of a writer whose clock is ahead
        return time.time() - self.since_s if self.since_s is not None else 0


def pattern(grep: str | None) -> re.Pattern[str] | None:
    """What lines contain that are wanted.

    Raises:
        RunError: It is no regular expression.
    """
    try:
        return re.compile(grep) if grep is not None else None
    except re.error as error:
        raise RunError(
            f"grep is {grep!r}, which is no regular expression ({error}); write \\ before what is "
            "meant literally"
        ) from None


def together(of_pods: Iterable[Printed], of_folder: Iterable[Printed], tail: int) -> list[Printed]:
    """The lines of pods, and those of the folder that no pod has, the last ones of each rank.

    The folder has a line's time as it was read, and the kubelet just after that.
    """
    here: dict[tuple[int | None, str], deque[float]] = {}
    by_rank: dict[int | None, list[Printed]] = {}
    for line in sorted(of_pods, key=lambda line: line.time):
        here.setdefault((line.rank, line.text), deque()).append(line.time)
        by_rank.setdefault(line.rank, []).append(line)
    for line in sorted(of_folder, key=lambda line: line.time):
        same = here.get((line.rank, line.text), deque())
        while same and same[0] < line.time - _LATER_S:
            same.popleft()
        if same and same[0] <= line.time + _LATER_S:
            same.popleft()
        else:
            by_rank.setdefault(line.rank, []).append(line)
    ordered = (sorted(lines, key=lambda line: line.time) for lines in by_rank.values())
    return [line for lines in ordered for line in (lines[-tail:] if tail else [])]


def until_its_end(
    followed: following.Followed, selection: Selection, say: Callable[[str], None]
) -> Iterator[dict[str, Any] | None]:
    """The run as it is now until it ends, or the attempt that is wanted alone; as `looks`."""
    suspended = False
    for run in following.looks(followed, known=True):
        yield run
        if run is None:
            continue
        if selection.attempt is not None and _is_over(run, selection.attempt):
            return
        if (phase(run) == Phase.SUSPENDED) is not suspended:
            suspended = not suspended
            if suspended and Phase.SUSPENDED not in followed.ends:
                say(f"{run['metadata']['name']} is suspended; its lines follow once it is resumed.")


def _is_over(run: Mapping[str, Any], attempt: int) -> bool:
    """Whether an attempt of a run has ended, which another one need not have followed yet."""
    status = run.get("status") or {}
    return (status.get("attempt") or 0) > attempt or any(
        one.get("number") == attempt and one.get("endTime") for one in status.get("attempts") or []
    )


def unix(stamp: str) -> float:
    """Unix time of a kubelet's stamp, which has nanoseconds."""
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", stamp)).timestamp()
    except ValueError:
        return 0.0
