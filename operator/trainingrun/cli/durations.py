"""Durations as people write them."""

import re

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|)")


def seconds(text: str) -> float:
    """Seconds in `15s`, `2m`, `1.5h` or plain `15`.

    Raises:
        ValueError: It is none of these; the text says what to write.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text} is no duration; write for example 15s, 2m or 1h")
    return float(found[1]) * _UNITS[found[2]]


def short(total_seconds: float) -> str:
    """A duration in its largest unit, as kubectl shows ages: 42s, 17m, 5h, 3d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if total_seconds >= 2 * size:
            return f"{int(total_seconds // size)}{unit}"
    return f"{int(max(total_seconds, 0))}s"
