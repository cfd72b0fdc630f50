"""Places of lines and labels on the page, in percent of a chart's width and height. Pure.

A chart is an SVG that is stretched to its place, with its labels beside it as text: so a page is as
readable on a phone as on paper.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .curves import Series

BINS = 300
"""Parts of a curve's width; of each its least and its largest value are drawn."""
POINTS = 60
"""Places of a curve that tell their value."""
COLORS = 4
"""Colors of attempts, which follow each other again and again."""
_LOG_FROM = 1000.0
"""A curve of positive values whose largest is so many times the least has a logarithmic scale."""


class Label(NamedTuple):
    """A text beside a chart."""

    at: float
    """Percent from the left, or from above."""
    text: str


class Line(NamedTuple):
    """The part of a curve that one attempt has made."""

    attempt: int
    color: int
    path: str
    """Of an SVG with a view box of 100 by 100."""


class Point(NamedTuple):
    """A place on a curve that tells its value."""

    left: float
    """Percent."""
    top: float
    """Percent."""
    title: str


@dataclass(frozen=True)
class Curve:
    """A metric over steps."""

    name: str
    lines: list[Line]
    x_labels: list[Label]
    y_labels: list[Label]
    marks: list[float]
    """Where steps were lost, in percent from the left."""
    logarithmic: bool
    last: str
    least: str
    largest: str
    left_out: int
    """Values that are NaN or infinite, which are not drawn."""
    points: list[Point]
    """At most `POINTS`, evenly over the steps, and the last one."""


def number(value: float) -> str:
    """A value with four digits."""
    return f"{value:.4g}"


def curve(series: Series, lost_at: Sequence[int]) -> Curve:
    """Where the curve of a metric is drawn.

    Args:
        series: At least one point.
        lost_at: Steps after which workers were lost.
    """
    values = [value for _, value, _ in series.points]
    low, high = min(values), max(values)
    logarithmic = low > 0 and high / low >= _LOG_FROM
    first, last = series.points[0][0], series.points[-1][0]
    x, y = _Scale(first, last), _Scale(low, high, logarithmic)
    groups: list[list[tuple[int, float, int]]] = []
    for point in _thinned(series.points, x):
        if not groups or groups[-1][0][2] != point[2]:
            # The line of an attempt begins where that of the former one ends.
            groups.append([(*groups[-1][-1][:2], point[2])] if groups else [])
        groups[-1].append(point)
    lines = [
        Line(
            group[0][2],
            group[0][2] % COLORS,
            "M" + "L".join(f"{x.at(step):.2f} {100 - y.at(value):.2f}" for step, value, _ in group),
        )
        for group in groups
    ]
    return Curve(
        series.name,
        lines,
        _steps(x, first, last),
        [Label(100 - y.at(tick), number(tick)) for tick in y.ticks(4)],
        [x.at(step) for step in lost_at if first <= step <= last],
        logarithmic,
        number(values[-1]),
        number(low),
        number(high),
        series.left_out,
        _points(series.points, x, y),
    )


def _steps(x: "_Scale", first: int, last: int) -> list[Label]:
    """Round steps, and the last one where it has place."""
    labels = [Label(x.at(tick), f"{tick:,.0f}") for tick in x.ticks(4) if tick == int(tick)]
    if last > first and (not labels or labels[-1].at < 85):
        labels.append(Label(100.0, f"{last:,}"))
    return labels


def _points(points: Sequence[tuple[int, float, int]], x: "_Scale", y: "_Scale") -> list[Point]:
    kept = points[:: max(-(-len(points) // POINTS), 1)]
    return [
        Point(x.at(step), 100 - y.at(value), f"step {step:,}: {number(value)}, attempt {attempt}")
        for step, value, attempt in [*kept, *points[-1:]]
    ]


class _Scale:
    """From values to percent."""

    def __init__(self, low: float, high: float, logarithmic: bool = False) -> None:
        self._log = logarithmic
        self._low, self._high = low, high
        self._from, self._to = self._of(low), self._of(high)

    def _of(self, value: float) -> float:
        # Halved, so that the distance between two floats is one, too.
        return math.log10(value) if self._log else value / 2

    def at(self, value: float) -> float:
        if self._to <= self._from:
            return 50.0
        return (self._of(value) - self._from) / (self._to - self._from) * 100

    def ticks(self, wanted: int) -> list[float]:
        """Round values, some `wanted` of them."""
        if self._to <= self._from:
            return [self._low]
        if self._log:
            powers = range(math.ceil(self._from - 1e-9), math.floor(self._to + 1e-9) + 1)
            return [10.0**power for power in powers[:: max(len(powers) // wanted, 1)]]
        rough = (self._to - self._from) * 2 / wanted
        if not 0 < rough < math.inf:
            return [self._low, self._high]
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough * 0.999)
        if not step or self._high / step > 2**53:  # too near each other for round values
            return [self._low, self._high]
        first = math.ceil(self._low / step - 1e-9)
        count = math.floor(self._high / step + 1e-9) - first + 1
        return [(first + index) * step for index in range(count)]


def _thinned(
    points: Sequence[tuple[int, float, int]], x: _Scale
) -> Sequence[tuple[int, float, int]]:
    """The least and the largest value of each bin and attempt, in the order of steps."""
    if len(points) <= 2 * BINS:
        return points
    bins: dict[tuple[int, int], list[tuple[int, float, int]]] = {}
    for point in points:
        bins.setdefault((int(x.at(point[0]) * BINS / 100), point[2]), []).append(point)
    kept = {points[0], points[-1]}
    for members in bins.values():
        kept |= {min(members, key=lambda one: one[1]), max(members, key=lambda one: one[1])}
    return sorted(kept)


class Span(NamedTuple):
    """A part of the time line."""

    left: float
    """Percent."""
    width: float
    """Percent."""
    kind: str
    """`starting`, `training`, `paused` or `unknown`."""
    title: str


class Mark(NamedTuple):
    """A moment on the time line."""

    left: float
    """Percent."""
    kind: str
    """`lost` or `saved`."""
    title: str
