"""Which step a `ray.train.report` of code without a session is of; pure."""

from collections.abc import Callable
from typing import Any


class ReportedSteps:
    """Counts the reports that do not say their step.

    What is done again after a loss gets the same steps as before: each depends on what is reported
    and on the step before alone, and a worker group begins with that of its checkpoint.

    Args:
        resumed_step: step of the checkpoint that the worker group began from; 0: from scratch. It
            is asked once in each group, at its first report.
    """

    def __init__(self, resumed_step: Callable[[], int]) -> None:
        self._resumed_step = resumed_step
        self._last: int | None = None

    def group_begins(self) -> None:
        """A worker group begins anew from a checkpoint."""
        self._last = None

    def of(self, metrics: dict[str, Any]) -> int:
        """The step of the next report.

        Args:
            metrics: what rank 0 has reported.
        """
        last = self._resumed_step() if self._last is None else self._last
        self._last = step_of(metrics, last)
        return self._last


def step_of(metrics: dict[str, Any], last: int) -> int:
    """The step that is reported, else the next one.

    An epoch is taken for the step where it is beyond the last one. Else the reports are counted:
    there are several in an epoch, or epochs are counted from 0.

    Args:
        metrics: what rank 0 has reported.
        last: step of the report before, or of the checkpoint that the worker group began from.
    """
    for name in ("step", "global_step", "training_iteration"):
        value = _whole(metrics.get(name))
        if value is not None:
            return value
    epoch = _whole(metrics.get("epoch"))
    return epoch if epoch is not None and epoch > last else last + 1


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
