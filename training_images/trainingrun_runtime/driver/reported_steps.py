"""Which step a `ray.train.report` of code without a session is of; pure."""

from collections.abc import Callable, Mapping
from typing import Any

from ..store.metric_values import printable


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

    def of(self, metrics: Mapping[str, Any], known: int | None = None) -> int:
        """The step of the next report.

        Args:
            metrics: what rank 0 has reported.
            known: its step, where a session has made the report.
        """
        if known is None:
            last = self._resumed_step() if self._last is None else self._last
            known = step_of(metrics, last)
        self._last = known
        return known


def step_of(metrics: Mapping[str, Any], last: int) -> int:
    """The step that is reported, else the next one.

    An epoch is taken for the step where it is beyond the last one. Else the reports are counted:
    there are several in an epoch, or epochs are counted from 0.

    Args:
        metrics: what rank 0 has reported.
        last: step of the report before, or of the checkpoint that the worker group began from.
    """
    for name in ("step", "global_step", "training_iteration"):
        value = _whole(metrics, name)
        if value is not None:
            return value
    epoch = _whole(metrics, "epoch")
    return epoch if epoch is not None and epoch > last else last + 1


def _whole(metrics: Mapping[str, Any], name: str) -> int | None:
    value = printable(metrics.get(name))  # of any library
    return value if isinstance(value, int) and not isinstance(value, bool) else None
