"""Times as Kubernetes writes them: RFC 3339 in UTC, whole seconds."""

from datetime import UTC, datetime
from functools import lru_cache

LAST = 253_402_300_799.0
"""The last Unix time that a Kubernetes timestamp can name, in the year 9999."""


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
