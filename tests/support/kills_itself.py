"""A training function whose rank 0 is killed once, when every node has a prestarted process."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch

from trainingrun_runtime import Session
from trainingrun_runtime.worker.worker import this_worker

FOLDER = Path(os.environ.get("KILLS_ITSELF_FOLDER", "/nonexistent"))
if FOLDER.exists():
    (FOLDER / str(os.getpid())).touch()  # who has loaded this module, and when


def train(config: dict[str, Any]) -> None:
    """Ends with metrics.

    `taken_over`: whether rank 0's process had loaded this module before the kill.
    `coordinator_imports`: whether the coordinator has imported Ray Train.
    """
    rank = ray.train.get_context().get_world_rank()
    session = Session(model=torch.nn.Linear(1, 1))
    killed = FOLDER / "killed"
    for _ in session.steps(20):
        while rank == 0 and not killed.exists():
            if len(list(FOLDER.iterdir())) == 4:  # both ranks' processes and two prestarted ones
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.1)
    loaded = (FOLDER / str(os.getpid())).stat().st_mtime
    imports = this_worker().coordinator.__ray_call__.remote(lambda _: "ray.train" in sys.modules)
    session.finish(taken_over=loaded < killed.stat().st_mtime, coordinator_imports=ray.get(imports))
