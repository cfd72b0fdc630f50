"""How a trial of a sweep is rated, and whether it waits for others; pure."""

from collections.abc import Mapping
from typing import Any


class TrialRating:
    """The metric by which trials are compared, as this one has reported it last.

    Args:
        metric: its name; None: the run is no trial.
    """

    def __init__(self, metric: str | None) -> None:
        self._metric = metric
        self._paused_at: int | None = None
        self.latest: tuple[int, Any] | None = None
        """The step and the metric's value; None: it was not reported yet."""

    def begin(self) -> None:
        """A worker group begins."""
        self._paused_at = None

    def rated(self, step: int, value: Any) -> None:
        """The metric of a step."""
        self.latest = (step, value)

    def rate_by(self, step: int, metrics: Mapping[str, Any]) -> None:
        """What was reported of a step, which may have the metric."""
        if self._metric is not None and self._metric in metrics:
            self.rated(step, metrics[self._metric])

    def paused(self, step: int, value: Any) -> None:
        """The trial ends here and waits for others; its metric."""
        self._paused_at, self.latest = step, (step, value)

    def fields(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of the progress document of a trial that waits.

        Args:
            metrics: those of the document.
        """
        if self._paused_at is None or self._metric is None or self.latest is None:
            return {}
        rated = {self._metric: self.latest[1]}
        rated |= {name: value for name, value in metrics.items() if name != self._metric}
        return {"paused_at_step": self._paused_at, "metrics": rated}
