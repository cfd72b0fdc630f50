"""Passes `ray.train.report` from Ray's controller on to the coordinator."""

from collections.abc import Collection
from typing import Any

import ray

from ..checkpoints.uploaded_checkpoint import UploadedCheckpoint
from ..ray_internals.controller import ReportCallback, WorkerGroupCallback
from ..ray_internals.filesystem import SessionCheckpoint
from .document import printable_metrics
from .reported_steps import ReportedSteps


class CoordinatorReports(ReportCallback, WorkerGroupCallback):
    """Reports steps and uploads to the coordinator; it never waits for the store.

    Args:
        coordinator: handle of the `Coordinator` actor.
        needed: names of metrics that are kept in any case.
    """

    def __init__(self, coordinator: Any, needed: Collection[str] = ()) -> None:
        self._coordinator, self._needed = coordinator, needed
        self._steps = ReportedSteps(lambda: int(ray.get(coordinator.resumed_step.remote())))

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """A worker group begins, at the step of the checkpoint that it will restore."""
        self._steps.group_begins()

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        """Every rank has reported; with a checkpoint, all of it is uploaded."""
        checkpoint = training_report.checkpoint
        reported_first = metrics[0] if metrics else {}
        known = checkpoint.step if isinstance(checkpoint, SessionCheckpoint) else None
        step = self._steps.of(reported_first, known)
        # Converted: the types that training code reports may not be importable elsewhere.
        own = printable_metrics(reported_first, self._needed)
        reported = self._coordinator.reported.remote(step, own)
        if checkpoint is not None:
            upload = UploadedCheckpoint(checkpoint.path, step, len(metrics), own)
            ray.get(reported)  # the table has it before the checkpoint is committed
            # Synchronous: after the last report the driver waits for the uploads that are left.
            ray.get(self._coordinator.uploaded.remote(upload))
