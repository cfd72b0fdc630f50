"""Passes `ray.train.report` from Ray's controller on to the coordinator."""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import ray
from ray import cloudpickle

from ..coordinator.checkpoints import UploadedCheckpoint
from ..ray_internals.filesystem import SessionCheckpoint
from ..ray_internals.training import (
    ControllerCallback,
    ReportCallback,
    WorkerGroupCallback,
    end_groups_that_fail_to_start,
    keep_no_snapshot,
)
from ..store.reported_metrics import printable, printable_metrics
from ..worker import prestarted_worker

_PENDING = 100
"""Calls that are waited for at the end; older ones have arrived long before."""


class CoordinatorReports(ReportCallback, WorkerGroupCallback, ControllerCallback):
    """Reports steps and uploads to the coordinator; it never waits for the store.

    Args:
        coordinator: handle of the `Coordinator` actor.
        needed: names of metrics that are kept in any case.
        prestarts: whether a process waits on the head for the next worker group, which takes the
            memory of one with Ray Train.
    """

    def __init__(
        self, coordinator: Any, needed: Collection[str] = (), *, prestarts: bool = False
    ) -> None:
        self._coordinator, self._needed, self._prestarts = coordinator, needed, prestarts
        self._last: dict[str, Any] | None = None
        self._pending: deque[Any] = deque(maxlen=_PENDING)
        self._steps = ReportedSteps(lambda: int(ray.get(coordinator.resumed_step.remote())))

    def after_controller_start(self, train_run_context: Any) -> None:
        """Ray's controller begins: this is its process."""
        keep_no_snapshot()
        end_groups_that_fail_to_start()

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """A worker group begins, at the step of the checkpoint that it will restore."""
        self._steps.group_begins()
        self._coordinator.group_asked.remote(time.time())

    def before_init_train_context(self, *_workers: Any) -> dict[str, list[Any]]:
        """Its processes are there."""
        self._coordinator.group_times.remote({"created": time.time()})
        return {}

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Its backend is set up, such as the process group, and no function is called yet."""
        self._coordinator.group_times.remote({"backend": time.time()})
        if self._prestarts:
            prestarted_worker.schedule_beside_controller()

    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        """It trains no more: what validations and a script do after it is no hang of its ranks."""
        # Synchronous: the next group's ranks may join right after.
        ray.get(self._coordinator.group_shut_down.remote())

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        """Every rank has reported; with a checkpoint, all of it is uploaded."""
        checkpoint = training_report.checkpoint
        reported_first = metrics[0] if metrics else {}
        known = checkpoint.step if isinstance(checkpoint, SessionCheckpoint) else None
        step = self._steps.of(reported_first, known)
        # Converted: the types that training code reports may not be importable elsewhere.
        own = printable_metrics(reported_first, self._needed)
        reported = self._coordinator.reported.remote(step, own)
        self._last = reported_first
        self._pending.append(reported)
        if checkpoint is not None:
            validated = bool(training_report.validation)
            upload = UploadedCheckpoint(
                checkpoint.path,
                step,
                len(metrics),
                own,
                ranks=tuple(range(len(metrics))) if known is not None else None,
                session=known is not None,
                validated=validated,
            )
            ray.get(reported)  # the table has it before the checkpoint is committed
            # Synchronous: after the last report the driver waits for the uploads that are left.
            ray.get(self._coordinator.uploaded.remote(upload))

    def after_controller_finish(self, result: Any) -> None:
        """Training is done: the coordinator gets the last report as it was, for the script."""
        ray.get(list(self._pending))  # Ray runs the coordinator's calls in no order
        if self._last is not None:
            # As bytes: the coordinator may not be able to import what is in it.
            ray.get(self._coordinator.keep_last_report.remote(cloudpickle.dumps(self._last)))


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
