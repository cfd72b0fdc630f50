"""What ranks report: metrics as JSON can carry them, and rows of them on the way to the bucket."""

import hashlib
import logging
import math
from collections.abc import Collection, Mapping
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from trainingrun_protocol.wire import encodable

log = logging.getLogger(__name__)

MOST = 1000
"""Metrics of a report that are kept, in checkpoints and in the run's table."""
SHOWN = 50
"""Metrics of a report that a progress document has."""
_CHARACTERS, _DIGITS = 200, 8


def printable_metrics(metrics: Mapping[Any, Any], needed: Collection[str] = ()) -> dict[str, Any]:
    """Metrics as JSON can carry them; never raises.

    At most `MOST` of them and 200 characters each are kept, so that a report with a metric for each
    sample leaves no manifest that is too large to be read. Names that would be the same then differ
    by what follows them: a type, or in the place of what is cut a digest.

    Args:
        metrics: what was reported.
        needed: names of metrics that something else depends on: they are kept in any case.
    """
    if len(metrics) > MOST:
        _say_that_they_are_too_many()
    kept = islice(_first(needed, metrics).items(), MOST)
    return {_name(name, metrics): printable(value) for name, value in kept}


def _name(name: Any, others: Collection[Any]) -> str:
    """What it is follows from the name alone, so that it is the same in each report."""
    try:
        text = str(name)
    except Exception:
        return f"<{type(name).__name__}>"
    if not isinstance(name, str) and text in others:
        text = f"{text} ({type(name).__name__})"
    text = encodable(text)
    if len(text) <= _CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    return f"{text[: _CHARACTERS - _DIGITS - 1]}~{digest}"


def shown_metrics(metrics: Mapping[str, Any], needed: Collection[str] = ()) -> dict[str, Any]:
    """What of them a document has: at most `SHOWN`, the needed ones first.

    A status that grows with what users report ends in an object that the API server refuses.
    """
    return dict(islice(_first(needed, metrics).items(), SHOWN))


@cache
def _say_that_they_are_too_many() -> None:
    """Once in a process: code that reports so many does it in each step."""
    log.warning("more than %d metrics are reported at once; the others are not kept", MOST)


def _first(needed: Collection[str], metrics: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return {**{name: metrics[name] for name in needed if name in metrics}, **metrics}


def printable(value: Any) -> Any:
    """A metric as JSON can carry it; never raises.

    Numbers of any library become Python numbers, NaN and infinity the strings "NaN", "Infinity" and
    "-Infinity", anything else its `repr`. Text is such that UTF-8 can hold it.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    try:
        if hasattr(value, "item"):  # a scalar of numpy, torch or jax; larger arrays raise
            value = value.item()
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            # Not of a type of the user's, such as an IntEnum, which another process may not know.
            return int(value) if abs(value) < 2**63 else float(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else _spelled(value)
        return _text(value if isinstance(value, str) else repr(value))
    except Exception:
        return f"<{type(value).__name__}>"


def _text(value: Any) -> str:
    """At most 200 characters, such as UTF-8 can hold; never raises."""
    try:
        return encodable(str(value)[:_CHARACTERS])[:_CHARACTERS]
    except Exception:
        return f"<{type(value).__name__}>"


def number_of(value: Any) -> float | None:
    """A reported metric as a number; None: it is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


SPELLED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The numbers that JSON cannot carry."""


def _spelled(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


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
