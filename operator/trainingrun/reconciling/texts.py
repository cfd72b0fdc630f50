"""Texts and times as they are in a status or an event.

All texts are cut, for etcd limits an object to 1.5 MB and what training code, KubeRay or a webhook
says has no limit of its own. Times are as Kubernetes writes them: RFC 3339 in UTC, whole seconds.
"""

from datetime import UTC, datetime
from functools import lru_cache

MESSAGE = 1000
"""Characters of a condition's or an event's message."""
ATTEMPT_MESSAGE = 500
"""Characters of an attempt's message; twenty attempts are kept."""
URI = 1024
"""Characters of a checkpoint's URI; S3 allows keys of 1,024 bytes."""

LAST = 253_402_300_799.0
"""The last Unix time that a Kubernetes timestamp can name, in the year 9999."""


def short(text: str, most: int = MESSAGE) -> str:
    """The text on one line, its end cut off where it is longer.

    Without controls and other invisible characters: a terminal that prints a status must not
    execute control sequences of training code.
    """
    # The cut comes first: what has no limit is not to be split as a whole.
    line = " ".join(text[: 4 * most].split())
    if not line.isprintable():
        line = "".join(filter(str.isprintable, line))
    return line if len(line) <= most else f"{line[: most - 3]}..."


@lru_cache(maxsize=4096)
def parsed(text: str) -> datetime:
    """The time of a Kubernetes timestamp."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def written(time: datetime) -> str:
    """The time as Kubernetes writes it; fractions of a second are dropped."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_unix(seconds: float) -> datetime:
    """The time of a Unix time in seconds, as the runtime reports it, clamped to what is valid."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), LAST) if seconds == seconds else 0.0, UTC)


def seconds_since(text: str, now: datetime) -> float:
    """Seconds from a timestamp until now; negative if it is still to come."""
    return (now - parsed(text)).total_seconds()
