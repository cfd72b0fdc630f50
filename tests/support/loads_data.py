"""A training function that draws its data through the session, with a rank that can be killed once.

Keys of its config: `folder`, where every rank notes the samples of each step that it has done;
`loader`: "ray" for a `ResumableRayDataLoader`, "stateful" for torchdata's; `seed` of the session;
`killed`: a rank, or `ALL` of them, that kills itself in the middle of step `KILLED_AT`, once the
checkpoint of step `SAVED_AT` is committed; `step_seconds`; `until`: a file that has to be there
before step `HELD_AT` ends.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import prepare_model
from torch import nn

from trainingrun_runtime import ResumableDataLoader, ResumableRayDataLoader, Session
from trainingrun_runtime.examples.repeatable import REPEATABLE, seed_everything, weights_sha256

Parts = tuple[Any, Callable[[Any], tuple[torch.Tensor, torch.Tensor]]]
"""A loader, and how its batches become numbers and indices."""

SAMPLES, EPOCHS, BATCH_SIZE = 83, 2, 4
SAVED_AT, KILLED_AT, HELD_AT = 5, 16, 4
ALL = "all"
"""Instead of a rank that is killed."""


class Noisy:
    """Numbers of a sample, each time with other noise, and the sample's index."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        numbers = torch.randn(4, generator=torch.Generator().manual_seed(index))
        return numbers + 0.1 * torch.randn(4), index


class Plain(Noisy):
    """The same without noise, which no other loader would repeat."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(4, generator=torch.Generator().manual_seed(index)), index


class Named(Noisy):
    """The same with names, for Ray Data."""

    def __getitem__(self, index: int) -> dict[str, Any]:  # type: ignore[override]
        return {"numbers": super().__getitem__(index)[0], "word": f"sample {index}"}


def _torch_loader() -> Parts:
    loader = ResumableDataLoader(
        Noisy(), BATCH_SIZE, seed=7, num_workers=2, persistent_workers=True
    )
    return loader, lambda batch: batch


def _ray_loader() -> Parts:
    """Ray Data has batches of another size in between."""
    loader = ResumableRayDataLoader(
        Named(),
        BATCH_SIZE,
        seed=7,
        transform=lambda rows: rows.map_batches(_halved, batch_size=5),
        batches_per_block=3,
    )
    return loader, lambda batch: (batch["numbers"], batch["sample_index"])


def _halved(rows: dict[str, Any]) -> dict[str, Any]:
    return {"numbers": rows["numbers"] / 2, "sample_index": rows["sample_index"]}


def _stateful_loader() -> Parts:
    """Each rank has samples of its own, and a loader that is saved for it."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    context = ray.train.get_context()
    mine = range(context.get_world_rank(), SAMPLES, context.get_world_size())
    samples = torch.utils.data.Subset(Plain(), mine)
    loader = StatefulDataLoader(samples, BATCH_SIZE, shuffle=True, num_workers=2)
    return loader, lambda batch: batch


LOADERS = {"torch": _torch_loader, "ray": _ray_loader, "stateful": _stateful_loader}


def train(config: dict[str, Any]) -> None:
    """Ends with the digest of the weights."""
    seed_everything(0)
    rank = ray.train.get_context().get_world_rank()
    folder = Path(config["folder"])
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    model = prepare_model(net, parallel_strategy_kwargs=REPEATABLE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader, parts = LOADERS[config.get("loader", "torch")]()
    session = Session(seed=config.get("seed"), model=model, optimizer=optimizer, loader=loader)
    for epoch in session.epochs(EPOCHS):
        for batch in session.batches(loader):
            numbers, indices = parts(batch)
            loss = model(numbers).square().mean()
            if session.step == KILLED_AT and config.get("killed") in (rank, ALL):
                _die_once(folder, rank)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if session.step == SAVED_AT - 1:
                session.save()
            with (folder / f"rank-{rank}").open("a") as journal:
                journal.write(f"{session.step} {epoch} {indices.tolist()}\n")
            while session.step == HELD_AT and not Path(config.get("until", folder)).exists():
                time.sleep(0.05)
            time.sleep(config.get("step_seconds", 0.0))
    session.finish(weights_sha256=weights_sha256(model))


def _die_once(folder: Path, rank: int) -> None:
    if (folder / f"killed-{rank}").exists():
        return
    while not list((folder / "run" / "manifests").glob("*.json")):
        time.sleep(0.05)
    time.sleep(0.5)  # the step takes a while, so that all ranks are in it
    (folder / f"killed-{rank}").touch()
    os.kill(os.getpid(), signal.SIGKILL)
