"""A TrainingRun on this machine: a local Ray with one simulated node per worker, a folder as the
bucket, and the operator's part (attempts, retries, lost nodes) played in this process.
"""

from .errors import LocalError
from .run import Options, run_locally

__all__ = ["LocalError", "Options", "run_locally"]
