"""A module that takes at its import what scripts for torchrun take there, and trains with it."""

import importlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray.train
import torch
from threadpoolctl import threadpool_info
from torch.nn.parallel import DistributedDataParallel

from trainingrun_runtime import Session
from trainingrun_runtime.worker.worker import this_worker

PRESTARTED = "sklearn" in sys.modules
importlib.import_module("sklearn.svm")  # its OpenMP counts its threads when it is loaded

RANK = int(os.environ.get("RANK", -1))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", -1))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", -1))
DEVICE = f"cuda:{LOCAL_RANK}"
PID = os.getpid()


def surroundings() -> dict[str, Any]:
    """What a module finds where it is imported, and what a training function finds."""
    ours = ("MASTER_", "TRAININGRUN_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    theirs = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    return {
        "pid": os.getpid(),
        "cwd": os.getcwd(),
        "thread": threading.current_thread() is threading.main_thread(),
        "signals": [_name(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM)],
        "threads": torch.get_num_threads(),
        "pools": {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()},
        **{k: v for k, v in sorted(os.environ.items()) if k.startswith(ours) or k in theirs},
    }


def _name(handler: Any) -> str:
    return str(getattr(handler, "__qualname__", handler))


AT_IMPORT = surroundings()


class Shard:
    """Where the samples of each rank begin: an object of this module, which a config may hold."""

    def samples(self) -> list[int]:
        """Those of this rank."""
        return list(range(64))[RANK::WORLD_SIZE]


def train(config: dict[str, Any]) -> None:
    """Notes in `config["folder"]` what each rank of each group has; ends at the file `end`."""
    rank, group = ray.train.get_context().get_world_rank(), this_worker().group
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = Session(seed=0, model=model, optimizer=optimizer)
    folder = Path(config["folder"])
    noted = {
        "rank": rank,
        "group": group,
        "world_size": ray.train.get_context().get_world_size(),
        "local_rank": ray.train.get_context().get_local_rank(),
        "module": {"RANK": RANK, "WORLD_SIZE": WORLD_SIZE, "DEVICE": DEVICE, "PID": PID},
        "sklearn_was_there": PRESTARTED,
        "samples": config.get("shard", Shard()).samples(),
        "at_import": AT_IMPORT,
        "in_function": surroundings(),
    }
    written = folder / f".{group}-{rank}"
    written.write_text(json.dumps(noted))
    written.replace(folder / f"{group}-{rank}.json")
    for _ in session.steps(100_000):
        optimizer.zero_grad()
        model(torch.tensor([[float(RANK)]])).sum().backward()
        optimizer.step()
        time.sleep(0.05)
        if session.step % 20 == 0 and (folder / "end").exists():
            break
