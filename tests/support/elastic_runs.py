"""A training function that notes which samples each rank has trained on, and its runs."""

import json
import time
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import prepare_model

from trainingrun.local.ray_nodes import LocalRay
from trainingrun_runtime import ResumableDataLoader, Session
from trainingrun_runtime.worker.worker import this_worker

from .data_runs import DataRun

SAMPLES, EPOCHS = 200, 2


class Indices:
    """Samples that tell their index.

    Args:
        number: of samples.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), index / self._number), index


def train(config: dict[str, Any]) -> None:
    """Notes `step epoch samples` into a file for each rank of each worker group, within the step.

    The learning rate is 0.01 for each rank. Keys of its config: `folder`; `seed` of the session;
    `step_seconds`, until the file `go-on` is in the folder; `samples`; `saved_at`: a step after
    which a checkpoint is made, and before whose next one the ranks wait for that file; `own`: each
    rank has a generator.
    """
    context, folder = ray.train.get_context(), Path(config["folder"])
    rank, size = context.get_world_rank(), context.get_world_size()
    journals = folder / f"rank-{rank}-{this_worker().group:03d}"
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * size)
    loader = ResumableDataLoader(Indices(config.get("samples", SAMPLES)), 2, seed=3)
    own = {"noise": torch.Generator().manual_seed(rank)} if config.get("own") else {}
    session = Session(
        seed=config.get("seed"), model=model, optimizer=optimizer, loader=loader, **own
    )
    if session.world_changed is not None:
        before, now = session.world_changed
        for group in optimizer.param_groups:
            group["lr"] *= now / before
    for epoch in session.epochs(EPOCHS):
        for numbers, indices in session.batches(loader):
            while session.step == config.get("saved_at") and not (folder / "go-on").exists():
                time.sleep(0.05)
            if not (folder / "go-on").exists():
                time.sleep(config.get("step_seconds", 0.0))
            # Before the exchange: a rank that is lost after it, in the step, costs the step.
            with journals.open("a") as journal:
                journal.write(f"{session.step} {epoch} {indices.tolist()}\n")
            optimizer.zero_grad()
            model(numbers).square().mean().backward()
            optimizer.step()
            if session.step + 1 == config.get("saved_at"):
                session.save()
    session.finish(workers=size, rate=optimizer.param_groups[0]["lr"])


class ElasticRun(DataRun):
    """A run of `train`, or another function, with 1 or 2 workers."""

    def __init__(
        self,
        ray: LocalRay,
        folder: Path,
        resize_seconds: int = 0,
        function: str = "support.elastic_runs:train",
        **config: Any,
    ) -> None:
        super().__init__(ray, folder, function, config, EPOCHS)
        elastic = {"minimum_workers": 1, "resize_seconds": resize_seconds}
        self.contract = self.contract.model_copy(update=elastic)

    def steps(self) -> list[tuple[int, int, list[int]]]:
        """Those that counted: of one that a lost rank was in, the time that it was done again."""
        done: dict[int, list[tuple[int, int, list[int]]]] = {}
        for file in sorted(self.folder.glob("rank-*"), key=lambda file: file.name[-3:]):
            again = {}
            for line in file.read_text().splitlines():
                step, epoch, samples = line.split(maxsplit=2)
                again[int(step)] = (int(file.name[-3:]), int(epoch), json.loads(samples))
            for number, found in again.items():
                former = [one for one in done.get(number, []) if one[0] == found[0]]
                done[number] = [*former, found]
        return [(step, one[1], one[2]) for step in sorted(done) for one in done[step]]

    def sizes(self) -> list[tuple[int, int]]:
        """The resizes: workers before and after."""
        return [(one.from_workers, one.to_workers) for one in self.progress().resizes]
