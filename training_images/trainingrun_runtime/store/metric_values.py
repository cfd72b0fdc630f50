"""Metrics as JSON can carry them: in manifests, in the run's table and in the progress document."""

import logging
import math
from collections.abc import Collection, Mapping
from functools import cache
from itertools import islice
from typing import Any

log = logging.getLogger(__name__)

MOST = 1000
"""Metrics of a report that are kept, in checkpoints and in the run's table."""
SHOWN = 50
"""Metrics of a report that a progress document has."""
_CHARACTERS = 200


def printable_metrics(metrics: Mapping[Any, Any], needed: Collection[str] = ()) -> dict[str, Any]:
    """Metrics as JSON can carry them; never raises.

    At most `MOST` of them and 200 characters each are kept, so that a report with a metric for each
    sample leaves no manifest that is too large to be read.

    Args:
        metrics: what was reported.
        needed: names of metrics that something else depends on: they are kept in any case.
    """
    if len(metrics) > MOST:
        _say_that_they_are_too_many()
    kept = islice(_first(needed, metrics).items(), MOST)
    return {str(name)[:_CHARACTERS]: printable(value) for name, value in kept}


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
    "-Infinity", anything else its `repr`.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value[:_CHARACTERS]
    try:
        if hasattr(value, "item"):  # a scalar of numpy, torch or jax; larger arrays raise
            value = value.item()
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return value if abs(value) < 2**63 else float(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else _spelled(value)
        return repr(value)[:_CHARACTERS]
    except Exception:
        return f"<{type(value).__name__}>"


SPELLED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The numbers that JSON cannot carry."""


def _spelled(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
