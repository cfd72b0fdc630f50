"""Keeps one idle worker process per node that has PyTorch loaded already.

Most of a restart is Python starting and importing: 5 s of the 7 that `kill -9` costs stock Ray.
Ray keeps the process of a finished task for the next task or actor with the same runtime
environment; a task that only imports therefore leaves a process that is ready to train.
"""

import logging
import threading
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from . import seam

log = logging.getLogger(__name__)

INTERVAL_S = 1.0


def _import_everything() -> None:
    import torch.distributed  # noqa: F401

    import trainingrun_runtime.session  # noqa: F401


class Warmer:
    """Warms each node once when it joins, and again after each start of a worker group."""

    def __init__(self) -> None:
        self._warmed: set[str] = set()
        self._stop = threading.Event()
        self._task = ray.remote(_import_everything)
        self._environment: dict[str, Any] = seam.worker_runtime_env()
        self._thread = threading.Thread(target=self._keep_warm, name="warmer", daemon=True)

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread.start()

    def again(self) -> None:
        """The warm processes were used: warm every node anew."""
        self._warmed = set()

    def _keep_warm(self) -> None:
        while not self._stop.wait(INTERVAL_S if self._warmed else 0.1):
            try:
                for node in seam.live_worker_nodes() - self._warmed:
                    self._warmed.add(node)
                    self._task.options(
                        num_cpus=0,
                        max_retries=0,
                        runtime_env=self._environment,
                        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                    ).remote()
            except Exception as error:  # a cold start is slower, not wrong
                log.warning("a node could not be warmed: %s", error)
