"""spec.failures: how often, and how soon, a run is tried again."""

from typing import ClassVar, Literal

from pydantic import Field

from .base import Model, NumberOrAuto, Rule, Whole


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


SHORTEST_HANG_S = 10
LONGEST_HANG_S = 86400
"""Bounds of failures.hang.afterSeconds."""

SHORTEST_AUTO_S = 300
"""Least seconds of `afterSeconds: auto`."""


class Hang(Model):
    """What counts as a hang, and what follows."""

    after_seconds: NumberOrAuto = "auto"
    """Seconds without a step, 10 to 86400. auto: ten times the longest of the last hundred steps,
    at least 300, and at least 1800 while a rank computes. Outside of the steps of a session, and
    without one, the ranks have to use no CPU, GPU or network for that long."""
    action: Literal["Restart", "Report"] = "Restart"
    """Restart: the process that the others wait for is ended, and the workers begin again from the
    last step. Report: the stacks are kept and the condition Waiting says so; nothing is ended."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.afterSeconds) || (type(self.afterSeconds) == int ? self.afterSeconds >= "
            f"{SHORTEST_HANG_S} && self.afterSeconds <= {LONGEST_HANG_S} : "
            "self.afterSeconds == 'auto')",
            f"must be a number of seconds from {SHORTEST_HANG_S} to {LONGEST_HANG_S}, or auto",
            lambda hang: (
                hang.after_seconds == "auto"
                or (
                    isinstance(hang.after_seconds, int)
                    and SHORTEST_HANG_S <= hang.after_seconds <= LONGEST_HANG_S
                )
            ),
            "after_seconds",
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
    max_hangs: Whole = Field(default=3, ge=-1, le=100000)
    """Hangs that are ended by a restart; the next one ends the run. -1: as many as there are."""
    hang: Hang = Field(default_factory=Hang)
    """What counts as a hang, and what follows."""
    backoff: Backoff = Field(default_factory=Backoff)
    """The wait before the next attempt. A wait that has begun stays as long as it is."""
    max_attempts_without_progress: Whole = Field(default=3, ge=1, le=1000)
    """Attempts in a row that may end without a newer checkpoint, whatever ended them."""
    keep_failed_pods_seconds: Whole = Field(default=0, ge=0, le=604800)
    """Seconds for which the pods of a failed attempt stay after its driver has ended. Their GPUs
    stay in use for as long. The next attempt, suspend and ttlSecondsAfterFinished free them
    earlier. More seconds than an attempt began with keep its pods for ten minutes longer at
    most."""
