"""Times as Kubernetes writes them: RFC 3339 in UTC, whole seconds."""

from datetime import UTC, datetime


def parsed(text: str) -> datetime:
    """The moment that a Kubernetes timestamp names."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def written(moment: datetime) -> str:
    """The moment as Kubernetes writes it; fractions of a second are dropped."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_unix(seconds: float) -> datetime:
    """The moment of a Unix time in seconds, as the runtime tells it."""
    return datetime.fromtimestamp(seconds, UTC)


def seconds_since(text: str, now: datetime) -> float:
    """Seconds from a timestamp until now; negative if it is still to come."""
    return (now - parsed(text)).total_seconds()
