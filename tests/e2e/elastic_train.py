"""An elastic Ray Train script: each rank notes which samples it has trained on, and when.

Config: `samples` of the one epoch, `batch` of each rank in a step, and `step_seconds`.
"""

import json
import os
import time
from pathlib import Path

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model

from trainingrun_runtime import ResumableDataLoader, Session


class Indices(torch.utils.data.Dataset):
    """Samples that tell their index."""

    def __init__(self, number):
        self._number = number

    def __len__(self):
        return self._number

    def __getitem__(self, index):
        return torch.full((4,), index / self._number), index


def train(config):
    folder, pod = Path(os.environ["STEP_LOG_FOLDER"]), os.environ["POD_NAME"]
    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = Indices(config["samples"])
    loader = ResumableDataLoader(samples, config["batch"], shuffle=True, seed=3)
    session = Session(seed=0, model=model, optimizer=optimizer, loader=loader)
    began = time.time()
    for _ in session.epochs(1):
        for microbatches in session.microbatches(loader):
            # Before the exchange: a rank that is lost after it, in the step, costs the step.
            time.sleep(max(0, config["step_seconds"] - (time.time() - began)))
            began, seen = time.time(), []
            for (numbers, indices), weight in microbatches:
                (model(numbers).square().mean() * weight).backward()
                seen += indices.tolist()
            optimizer.step()
            optimizer.zero_grad()
            now, step = time.time(), session.step + 1
            with (folder / f"{pod}-{rank}.samples").open("a") as journal:
                journal.write(f"{now} {size} {' '.join(map(str, seen))}\n")
            if rank == 0:
                with (folder / f"{pod}.log").open("a") as journal:
                    journal.write(f"{now} {step}\n")
    session.finish(workers=size)


if __name__ == "__main__":
    TorchTrainer(
        train,
        train_loop_config=json.loads(os.environ["TRAININGRUN_CONFIG"]),
        scaling_config=ray.train.ScalingConfig(num_workers=(1, 2)),
    ).fit()
