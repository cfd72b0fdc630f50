"""What a disturbance cost, computed from the step journals, and the table of all scenarios. Pure.

A journal has one line per step done by rank 0, `<Unix time> <steps done>`. Every worker pod keeps
its own, so a run's steps are the lines of all its journals in the order of time.
"""

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One step that was done."""

    time: float
    """Unix time in seconds."""
    number: int
    """Steps done, this one included."""


def read_journals(texts: Iterable[str]) -> list[Step]:
    """The steps of several journals, oldest first.

    A line that was cut off, because its writer was killed in mid-write, is left out.
    """
    steps = []
    for text in texts:
        for line in text.splitlines(keepends=True):
            words = line.split()
            if not line.endswith("\n") or len(words) != 2:
                continue
            try:
                steps.append(Step(float(words[0]), int(words[1])))
            except ValueError:
                continue
    return sorted(steps)


def steps_lost(steps: Sequence[Step]) -> int:
    """How many steps were done although they had been done before."""
    highest = lost = 0
    for step in steps:
        if step.number <= highest:
            lost += 1
        highest = max(highest, step.number)
    return lost


def normal_step_seconds(steps: Sequence[Step]) -> float:
    """The median time between two steps; 0 with fewer than two."""
    gaps = [later.time - earlier.time for earlier, later in itertools.pairwise(steps)]
    return statistics.median(gaps) if gaps else 0.0


def seconds_without_training(steps: Sequence[Step], since: float) -> float:
    """The longest pause that ended after `since`, less the time that a step takes anyway.

    Args:
        steps: The run's steps, oldest first.
        since: Unix time of the disturbance. Pauses that were over by then are not its doing.

    Raises:
        ValueError: no step was done after `since`: training did not come back.
    """
    gaps = [
        later.time - earlier.time
        for earlier, later in itertools.pairwise(steps)
        if later.time > since
    ]
    if not gaps:
        raise ValueError("no step was done after the disturbance")
    return max(0.0, max(gaps) - normal_step_seconds(steps))


def gaps_in_numbers(steps: Sequence[Step]) -> list[int]:
    """Steps that were never done: a resume from a later step than any that was saved."""
    done = {step.number for step in steps}
    return [number for number in range(1, max(done, default=0) + 1) if number not in done]


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario of the table."""

    scenario: str
    """What was done to the run."""
    seconds: float | None = None
    """Seconds without training; None: does not apply."""
    target: float | None = None
    """The design's upper bound for them; None: it has none."""
    lost: int | None = None
    """Steps done twice."""
    weights_equal: bool | None = None
    """Whether the final weights are bitwise those of the undisturbed run."""
    restarts: int | None = None
    """Application retries used; infrastructure must use none."""
    note: str = ""
    """What else is worth knowing."""


HEADER = (
    "scenario",
    "seconds without training",
    "design target",
    "steps lost",
    "weights equal",
    "restarts used",
    "note",
)


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, aligned so that it reads well as plain text too."""
    cells = [HEADER, *(cells_of(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
    cells.insert(1, tuple("-" * width for width in widths))
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    ]
    return "".join(f"| {line} |\n" for line in lines)


def cells_of(row: Row) -> tuple[str, ...]:
    """The row's cells, in the order of `HEADER`."""
    return (
        row.scenario,
        _or_dash(row.seconds, "{:.1f}"),
        _or_dash(row.target, "<= {:g}"),
        _or_dash(row.lost, "{}"),
        {True: "yes", False: "NO", None: "-"}[row.weights_equal],
        _or_dash(row.restarts, "{}"),
        row.note,
    )


def _or_dash(value: float | int | None, form: str) -> str:
    return "-" if value is None else form.format(value)
