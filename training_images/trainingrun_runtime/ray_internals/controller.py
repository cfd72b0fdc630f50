"""What Ray Train's controller calls: reports, failures and the decision about them.

Read for ray 2.58-2.60: `ray/train/v2/_internal/execution/callback.py` (`ControllerCallback`,
`ReportCallback`, `WorkerGroupCallback`), `.../failure_handling/` and
`ray/train/v2/_internal/exceptions.py`.
"""

from ray.train import ControllerError, PreemptionError
from ray.train.v2._internal.exceptions import (
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)
from ray.train.v2._internal.execution.callback import (
    ControllerCallback,
    ReportCallback,
    WorkerGroupCallback,
)
from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy

__all__ = [
    "ControllerCallback",
    "ControllerError",
    "FailureDecision",
    "FailurePolicy",
    "PreemptionError",
    "ReportCallback",
    "WorkerGroupCallback",
    "WorkerHealthCheckFailedError",
    "WorkerHealthCheckTimeoutError",
]
