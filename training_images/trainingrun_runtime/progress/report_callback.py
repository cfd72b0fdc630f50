"""Passes `ray.train.report` from Ray's controller on to the coordinator."""

from typing import Any

import ray

from ..checkpoints.uploaded_checkpoint import UploadedCheckpoint
from ..ray_internals.controller import ReportCallback
from .document import printable_metrics


class CoordinatorReports(ReportCallback):
    """Reports steps and uploads to the coordinator; it never waits for the store.

    Args:
        coordinator: handle of the `Coordinator` actor.
        base_step: step of the checkpoint that the driver begins from, for training code that
            reports no step of its own.
    """

    def __init__(self, coordinator: Any, base_step: int) -> None:
        self._coordinator, self._reports = coordinator, base_step

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        """Every rank has reported; with a checkpoint, all of it is uploaded."""
        self._reports += 1
        # Converted: the types that training code reports may not be importable elsewhere.
        own = printable_metrics(metrics[0] if metrics else {})
        step = step_of(own, self._reports)
        reported = self._coordinator.reported.remote(step, own)
        if training_report.checkpoint is not None:
            upload = UploadedCheckpoint(training_report.checkpoint.path, step, len(metrics), own)
            ray.get(reported)  # the table has it before the checkpoint is committed
            # Synchronous: after the last report the driver waits for the uploads that are left.
            ray.get(self._coordinator.uploaded.remote(upload))


def step_of(metrics: dict[str, Any], reports: int) -> int:
    """The step of code without a session: the one that it reports, else the number of reports."""
    for name in ("step", "global_step", "training_iteration", "epoch"):
        value = metrics.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return reports
