"""spec.failures: how often, and how soon, a run is tried again."""

from typing import ClassVar

from pydantic import Field

from .base import Model, Rule, Whole


class Backoff(Model):
    """The wait before the next attempt: initialSeconds * factor ** (failures in a row - 1)."""

    initial_seconds: Whole = Field(default=10, ge=0, le=86400)
    """Seconds before the first retry."""
    factor: Whole = Field(default=2, ge=1, le=10)
    """By how much each further wait is longer."""
    max_seconds: Whole = Field(default=600, ge=0, le=86400)
    """The longest wait, in seconds."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # Defaults are checked before they are filled in, hence has().
            "!has(self.initialSeconds) || !has(self.maxSeconds) || "
            "self.initialSeconds <= self.maxSeconds",
            "must not be less than initialSeconds; raise it or lower initialSeconds",
            lambda backoff: backoff.initial_seconds <= backoff.max_seconds,
            "max_seconds",
        ),
    )


class Failures(Model):
    """How often, and how soon, a run is tried again."""

    max_restarts: Whole = Field(default=3, ge=0, le=10000)
    """Retries after failures of the application itself, such as an exception. None follows the same
    error of the code in two attempts in a row before their first step, and an error of a script
    after its training."""
    max_preemptions: Whole = Field(default=-1, ge=-1, le=100000)
    """Losses of infrastructure that are survived; -1: as many as there are."""
    backoff: Backoff = Field(default_factory=Backoff)
    """The wait before the next attempt. A wait that has begun stays as long as it is."""
    max_attempts_without_progress: Whole = Field(default=3, ge=1, le=1000)
    """Attempts in a row that may end without a newer checkpoint, whatever ended them."""
