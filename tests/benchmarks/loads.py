"""The training that `bench.py` measures, for torchrun, for plain Ray Train and for us.

Run as a program it is torchrun's or Ray Train's; `ours` is a function for `training.function`. Its
settings are JSON in $LOAD, or the function's config: `steps`; `width` of the layers; `ballast`,
further megabytes of state; `wait_seconds` in each step, as a worker waits for its accelerator;
`saves`, the steps after which a checkpoint is made; `save`, a folder for a synchronous `torch.save`
under torchrun; `prints`, so many lines that rank 1 prints in each step; `pauses`, the steps after
which rank 0 waits for its next turn; `kill_at`, the step in which rank 1 kills itself once;
`times`, the file for the Unix times of rank 0's steps, with an empty line where it has waited for a
turn. The turn's number is in the file `times`.turn.
"""

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 64
LOOK_S = 0.01
"""Between two looks whether it is this side's turn."""


class Load:
    """A small network that trains on random numbers."""

    def __init__(self, settings: dict[str, Any], rank: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._settings, self._rank = settings, rank
        self._width = width = settings["width"]
        layers = [nn.Linear(width, width) for _ in range(4)]
        network = nn.Sequential(*layers, nn.ReLU(), nn.Linear(width, 1))
        # As many tensors as a network has. The optimizer has them too, as it has its own moments;
        # that they get no gradient leaves the steps as short as they are.
        for number in range(settings["ballast"] // 4):
            ballast = nn.Parameter(torch.rand(1_000_000), requires_grad=False)
            network.register_parameter(f"ballast-{number}", ballast)
        self.model = DistributedDataParallel(network, broadcast_buffers=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self._killed = Path(f"{settings['times']}.killed")
        self._turn, self._turns = Path(f"{settings['times']}.turn"), 0

    def train(self, steps: Iterable[int], save: Callable[[int], None]) -> None:
        """Do the steps; rank 0 writes down when each was done.

        Args:
            steps: their numbers.
            save: makes a checkpoint; called on every rank.
        """
        saves, pauses = set(self._settings["saves"]), set(self._settings["pauses"])
        with Path(self._settings["times"]).open("a", buffering=1) as times:
            for step in steps:
                self.optimizer.zero_grad()
                loss = self.model(torch.rand(BATCH, self._width)).square().mean()
                time.sleep(self._settings["wait_seconds"])  # until the accelerator is done
                if self._rank == 1:
                    self._print(step)
                loss.backward()
                self.optimizer.step()
                if self._rank == 0:
                    times.write(f"{time.time()}\n")
                if self._rank == 1 and step == self._settings.get("kill_at"):
                    self._die_once()
                if step in saves:
                    save(step)
                if self._rank == 0 and step in pauses:
                    self._wait_for_turn()
                    times.write("\n")

    def _print(self, step: int) -> None:
        for number in range(self._settings.get("prints", 0)):
            print(f"step {step}, line {number}: the loss is {0.125:.4f}")

    def _die_once(self) -> None:
        if not self._killed.exists():
            self._killed.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

    def _wait_for_turn(self) -> None:
        """The other rank waits for this one in the next step."""
        self._turns += 1
        while not self._turn.exists() or int(self._turn.read_text() or 0) < self._turns:
            time.sleep(LOOK_S)

    def write(self, folder: str) -> None:
        """Write the state, as a script does it by itself."""
        state = [self.model.module.state_dict(), self.optimizer.state_dict()]
        torch.save(state, Path(folder) / "state.pt")


def ours(config: dict[str, Any]) -> None:
    """With our session."""
    import ray.train

    from trainingrun_runtime import Session

    load = Load(config, ray.train.get_context().get_world_rank())
    session = Session(seed=1, model=load.model, optimizer=load.optimizer)
    load.train(session.steps(config["steps"]), lambda step: session.save())


def plain(config: dict[str, Any]) -> None:
    """With Ray Train alone: a checkpoint is written and uploaded while training waits."""
    import ray.train

    rank = ray.train.get_context().get_world_rank()
    load = Load(config, rank)

    def save(step: int) -> None:
        if rank != 0:
            ray.train.report({"step": step})
            return
        with tempfile.TemporaryDirectory() as folder:
            load.write(folder)
            checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": step}, checkpoint=checkpoint)

    load.train(range(config["steps"]), save)


def torchrun(config: dict[str, Any]) -> None:
    """Without Ray; rank 0 saves to a disk of this machine, where it saves, and the others wait."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    load = Load(config, rank)

    def save(step: int) -> None:
        if rank == 0:
            load.write(config["save"])
        torch.distributed.barrier()

    load.train(range(config["steps"]), save)
    # A rank that leaves while the other one is in its last step may abort at its exit.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> None:
    """Torchrun's program, or Ray Train's where $STORAGE says where checkpoints go."""
    settings = json.loads(os.environ["LOAD"])
    storage = os.environ.get("STORAGE")
    if not storage:
        torchrun(settings)
        return
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(log_to_driver=False)
    TorchTrainer(
        plain,
        train_loop_config=settings,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="plain", storage_path=storage, failure_config=FailureConfig(max_failures=3)
        ),
    ).fit()


if __name__ == "__main__":
    main()
