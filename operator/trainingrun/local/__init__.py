"""A TrainingRun on this machine: a local Ray with one simulated node per worker pod, a folder as
the bucket, and attempts, retries and lost nodes handled in this process instead of by the operator.
"""

from .machine import LocalError
from .run import Options, run_locally

__all__ = ["LocalError", "Options", "run_locally"]
