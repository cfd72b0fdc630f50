"""spec.checkpoints: when checkpoints are made and which are kept."""

from typing import ClassVar, Literal

from pydantic import Field

from .base import Model, NumberOrAuto, Rule, Whole

DEFAULT_INTERVAL_S = 300
"""Seconds between periodic checkpoints where the spec says nothing about them."""
_LONGEST_INTERVAL_S = 86400
"""Most seconds between two periodic checkpoints."""
ASSUMED_SECONDS_BETWEEN_LOSSES = {"OnDemand": 86400.0, "Spot": 7200.0, "PreferSpot": 7200.0}
"""What `everySeconds: auto` assumes before the first loss without notice, by capacity type."""


class BestCheckpoint(Model):
    """Which checkpoint is the best one."""

    metric: str = Field(min_length=1, max_length=253)
    """Name of a reported metric. A checkpoint has the metrics of its step, those of an evaluation
    after it too; one that has not this metric, as a finite number, is never the best."""
    order: Literal["min", "max"] = "max"
    """Whether smaller or larger is better."""


class Checkpoints(Model):
    """When checkpoints are made and which are kept."""

    keep: Whole = Field(default=2, ge=2, le=1000)
    """Newest checkpoints kept. At least 2: the newest may be altered or lost."""
    best: BestCheckpoint | None = None
    """Also keep the best checkpoint by this metric. Default: newest only."""
    keep_best: Whole | None = Field(default=None, ge=1, le=1000)
    """Best checkpoints kept beside the newest ones, by the metric of best. Ray's
    CheckpointConfig(num_to_keep=3, checkpoint_score_attribute=…) means 3 here. Default: 1."""
    every_seconds: NumberOrAuto | None = None
    """Seconds of training between the session's periodic checkpoints, 1 to 86400. auto: 10 to 3600,
    from what a checkpoint costs and how often this run is lost. Default: 300; where everySteps is
    set, none by time, except at the end of a loop or an epoch."""
    every_steps: Whole | None = Field(default=None, ge=1, le=1000000000)
    """The session makes a checkpoint at each multiple of so many steps; later, while the one before
    is still being uploaded. With everySeconds as well, also where that is due. Default: none."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.keepBest) || has(self.best)",
            "needs best, which names the metric: write best: {metric: accuracy}",
            lambda checkpoints: checkpoints.keep_best is None or checkpoints.best is not None,
            "keep_best",
        ),
        Rule(
            "!has(self.everySeconds) || (type(self.everySeconds) == int ? "
            f"self.everySeconds >= 1 && self.everySeconds <= {_LONGEST_INTERVAL_S} : "
            "self.everySeconds == 'auto')",
            f"must be a number of seconds from 1 to {_LONGEST_INTERVAL_S}, or auto",
            lambda checkpoints: (
                checkpoints.every_seconds in (None, "auto")
                or (
                    isinstance(checkpoints.every_seconds, int)
                    and 1 <= checkpoints.every_seconds <= _LONGEST_INTERVAL_S
                )
            ),
            "every_seconds",
        ),
    )

    @property
    def interval_s(self) -> int | Literal["auto"] | None:
        """Of everySeconds, with its default; None: no checkpoints are made by time."""
        if self.every_seconds is None and self.every_steps is None:
            return DEFAULT_INTERVAL_S
        return self.every_seconds
