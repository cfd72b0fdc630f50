"""The training that `training_overhead.py` measures, for torchrun, for plain Ray Train and for us.

Run as a program it is torchrun's or Ray Train's; `ours` is a function for `training.function`. Its
settings are JSON in $LOAD, or the function's config: `steps`; `width` of the layers; `ballast`,
further megabytes of state; `wait_seconds` in each step, as a worker waits for its accelerator;
`every_seconds` between checkpoints of plain Ray Train; `times`, the file for the Unix times of rank
0's steps.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 64


class Load:
    """A small network that trains on random numbers."""

    def __init__(self, settings: dict[str, Any], rank: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._settings, self._rank = settings, rank
        self._width = width = settings["width"]
        layers = [nn.Linear(width, width) for _ in range(4)]
        network = nn.Sequential(*layers, nn.ReLU(), nn.Linear(width, 1))
        network.register_buffer("ballast", torch.rand(settings["ballast"] * 250_000))
        self.model = DistributedDataParallel(network, broadcast_buffers=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def train(self, steps: Iterable[int], after: Callable[[int], None] = lambda step: None) -> None:
        """Do the steps; rank 0 writes down when each was done."""
        times = []
        for step in steps:
            self.optimizer.zero_grad()
            self.model(torch.rand(BATCH, self._width)).square().mean().backward()
            self.optimizer.step()
            time.sleep(self._settings["wait_seconds"])
            times.append(time.time())
            after(step)
        if self._rank == 0:
            Path(self._settings["times"]).write_text(json.dumps(times))


def ours(config: dict[str, Any]) -> None:
    """With our session."""
    import ray.train

    from trainingrun_runtime import Session

    load = Load(config, ray.train.get_context().get_world_rank())
    load.train(Session(model=load.model, optimizer=load.optimizer).steps(config["steps"]))


def plain(config: dict[str, Any]) -> None:
    """With Ray Train alone: a checkpoint is written and uploaded while training waits."""
    import ray.train

    rank = ray.train.get_context().get_world_rank()
    load = Load(config, rank)
    saved = time.monotonic()

    def save_when_due(step: int) -> None:
        nonlocal saved
        due = torch.tensor([int(time.monotonic() - saved >= config["every_seconds"])])
        torch.distributed.broadcast(due, 0)
        if not due.item():
            return
        saved = time.monotonic()
        if rank != 0:
            ray.train.report({"step": step})
            return
        with tempfile.TemporaryDirectory() as folder:
            state = [load.model.module.state_dict(), load.optimizer.state_dict()]
            torch.save(state, Path(folder) / "state.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": step}, checkpoint=checkpoint)

    load.train(range(config["steps"]), save_when_due)


def main() -> None:
    """Torchrun's program, or Ray Train's where $STORAGE says where checkpoints go."""
    settings = json.loads(os.environ["LOAD"])
    if storage := os.environ.get("STORAGE"):
        import ray
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        ray.init(log_to_driver=False)
        TorchTrainer(
            plain,
            train_loop_config=settings,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(name="plain", storage_path=storage),
        ).fit()
        return
    torch.distributed.init_process_group("gloo")
    load = Load(settings, torch.distributed.get_rank())
    load.train(range(settings["steps"]))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
