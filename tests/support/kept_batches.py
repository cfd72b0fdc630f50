"""A training function whose batch of the optimizer stays the same with fewer workers."""

import time
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import prepare_model
from torch import nn

from trainingrun.local.ray_nodes import LocalRay
from trainingrun_runtime import ResumableDataLoader, Session
from trainingrun_runtime.worker.worker import this_worker

from .elastic_runs import EPOCHS, ElasticRun

SAMPLES, BATCH_SIZE = 322, 4


class Shaken:
    """Samples with noise that is drawn anew each time, and their indices."""

    def __init__(self, noise: float) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        place = torch.arange(4, dtype=torch.float64) * index / SAMPLES
        return place.sin() + self.noise * torch.randn(4, dtype=torch.float64), index


def train(config: dict[str, Any]) -> None:
    """Notes `step epoch samples` into a file for each rank of each worker group, within the step.

    In 64 bits, so that the order of an addition is all that may differ. Keys of its config:
    `folder`, which gets the weights as well; `dropout`; `noise`; `step_seconds`.
    """
    context, folder = ray.train.get_context(), Path(config["folder"])
    rank, size = context.get_world_rank(), context.get_world_size()
    journals = folder / f"rank-{rank}-{this_worker().group:03d}"
    torch.manual_seed(0)
    dropout = nn.Dropout(config["dropout"])
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), dropout, nn.Linear(16, 1)).double()
    model = prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loader = ResumableDataLoader(Shaken(config["noise"]), BATCH_SIZE, seed=3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, total_steps=EPOCHS * len(loader)
    )
    session = Session(seed=5, model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    for epoch in session.epochs(EPOCHS):
        for microbatches in session.microbatches(loader):
            time.sleep(config["step_seconds"])
            seen: list[int] = []
            for (numbers, indices), weight in microbatches:
                wanted = numbers.sum(dim=1, keepdim=True).cos()
                loss = (model(numbers) - wanted).square().mean()
                (loss * weight).backward()
                seen += indices.tolist()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            with journals.open("a") as journal:
                journal.write(f"{session.step} {epoch} {seen}\n")
    if rank == 0:
        torch.save(net.state_dict(), folder / "weights.pt")
    session.finish(workers=size, steps=session.step, changed=session.world_changed is not None)


class KeptBatchRun(ElasticRun):
    """A run of `train` with `workers.globalBatch: keep`, and 1 worker or more."""

    def __init__(self, ray: LocalRay, folder: Path, workers: int, **config: Any) -> None:
        config = {"dropout": 0.0, "noise": 0.0, "step_seconds": 0.0, **config}
        super().__init__(ray, folder, function="support.kept_batches:train", **config)
        kept = {"workers": workers, "global_batch": "keep"}
        self.contract = self.contract.model_copy(update=kept)

    def weights(self) -> list[torch.Tensor]:
        """Those at the end."""
        return list(torch.load(self.folder / "weights.pt").values())

    def samples_of_steps(self) -> list[list[int]]:
        """What all ranks together have trained on in each step."""
        steps: dict[int, list[int]] = {}
        for step, _, samples in self.steps():
            steps.setdefault(step, []).extend(samples)
        return [sorted(steps[number]) for number in sorted(steps)]
