"""What Ray's controller hears of the ranks' reports, handed on to the board."""

from typing import Any

import ray

from ..checkpoints.uploaded_checkpoint import Upload
from ..ray_internals.controller import ReportCallback
from .document import printable_metrics


class Reports(ReportCallback):
    """Tells the board of steps and of uploads; it never waits for the store.

    Args:
        board: handle of the `Board` actor.
        base_step: step of the checkpoint that the driver begins from, for training code that
            reports no step of its own.
    """

    def __init__(self, board: Any, base_step: int) -> None:
        self._board, self._reports = board, base_step

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        """Every rank has reported; with a checkpoint, all of it is uploaded."""
        self._reports += 1
        # Printable: what training code reports may exist in no other process.
        own = printable_metrics(metrics[0] if metrics else {})
        step = step_of(own, self._reports)
        self._board.reported.remote(step, own)
        if training_report.checkpoint is not None:
            upload = Upload(training_report.checkpoint.path, step, len(metrics), own)
            # Waited for: after the last report the driver asks the board what is still to be done.
            ray.get(self._board.uploaded.remote(upload))


def step_of(metrics: dict[str, Any], reports: int) -> int:
    """The step that plain training code means: its own count where it reports one."""
    for name in ("step", "global_step", "training_iteration", "epoch"):
        value = metrics.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return reports
