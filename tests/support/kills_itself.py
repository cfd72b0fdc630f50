"""A training function whose rank 0 is killed once, when every node has a prestarted process."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import ray
import ray.train
import torch

from support.prestarted import processes
from trainingrun_runtime import Session
from trainingrun_runtime.worker.worker import this_worker

FOLDER = Path(os.environ.get("KILLS_ITSELF_FOLDER", "/nonexistent"))
IMPORTED_AT = time.time()


def train(config: dict[str, Any]) -> None:
    """Ends with metrics.

    `taken_over`: whether rank 0's process is older than the kill, and this module is not.
    `coordinator_imports`: whether the coordinator has imported Ray Train.
    """
    rank = ray.train.get_context().get_world_rank()
    session = Session(model=torch.nn.Linear(1, 1))
    killed = FOLDER / "killed"
    for _ in session.steps(20):
        while rank == 0 and not killed.exists():
            waiting = [p for p in processes(config["home"]) if p.title == "ray::IDLE"]
            if len(waiting) == 2:
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.1)
    at = killed.stat().st_mtime
    imports = this_worker().coordinator.__ray_call__.remote(lambda _: "ray.train" in sys.modules)
    session.finish(
        taken_over=psutil.Process().create_time() < at < IMPORTED_AT,
        coordinator_imports=ray.get(imports),
    )
