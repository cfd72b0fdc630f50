"""A training function that notes which samples each rank has trained on, and its runs."""

import time
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import prepare_model

from trainingrun.local.ray_nodes import LocalRay
from trainingrun_runtime import ResumableDataLoader, Session

from .data_runs import DataRun

SAMPLES, EPOCHS = 96, 2


class Indices(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Samples that tell their index."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), index / SAMPLES), index


def train(config: dict[str, Any]) -> None:
    """Notes `step epoch samples` into a file for each rank of each size, once a step is done.

    Keys of its config: `folder`; `seed` of the session; `step_seconds`.
    """
    context, folder = ray.train.get_context(), Path(config["folder"])
    rank, size = context.get_world_rank(), context.get_world_size()
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = ResumableDataLoader(Indices(), 2, seed=3)
    session = Session(seed=config.get("seed"), model=model, optimizer=optimizer, loader=loader)
    for epoch in session.epochs(EPOCHS):
        for numbers, indices in session.batches(loader):
            time.sleep(config.get("step_seconds", 0.0))
            optimizer.zero_grad()
            model(numbers).square().mean().backward()
            optimizer.step()
            with (folder / f"rank-{rank}-of-{size}").open("a") as journal:
                journal.write(f"{session.step} {epoch} {indices.tolist()}\n")
    session.finish(workers=size)


class ElasticRun(DataRun):
    """A run of `train` with 1 or 2 workers."""

    def __init__(self, ray: LocalRay, folder: Path, resize_seconds: int = 0, **config: Any) -> None:
        super().__init__(ray, folder, "support.elastic_runs:train", config, EPOCHS)
        elastic = {"minimum_workers": 1, "resize_seconds": resize_seconds}
        self.contract = self.contract.model_copy(update=elastic)

    def sizes(self) -> list[tuple[int, int]]:
        """The resizes: workers before and after."""
        return [(one.from_workers, one.to_workers) for one in self.progress().resizes]
