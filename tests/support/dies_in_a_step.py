"""A training function that ranks leave without notice, once; with dropout and BatchNorm.

Keys of its config: `folder`, where each step of rank 0 and each signal leaves a trace; `seed` of
the session; `steps`; `signals`: {rank: name of the signal that it sends itself}; `norm`.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import prepare_model
from torch import nn

from trainingrun_runtime import Session
from trainingrun_runtime.examples.repeatable import REPEATABLE, seed_everything, weights_sha256

DIES_AT = 12
"""Steps done when the ranks are sent their signals, in the middle of the next one."""


def train(config: dict[str, Any]) -> None:
    """Ends with the digest of the weights."""
    seed_everything(0)
    rank = ray.train.get_context().get_world_rank()
    folder = Path(config["folder"])
    norm = [nn.BatchNorm1d(8)] if config.get("norm", True) else []
    layers = [nn.Linear(4, 8), *norm, nn.Dropout(0.5), nn.Linear(8, 1)]
    model = prepare_model(nn.Sequential(*layers), parallel_strategy_kwargs=REPEATABLE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    session = Session(
        seed=config.get("seed"), model=model, optimizer=optimizer, scheduler=scheduler
    )
    for step in session.steps(config.get("steps", 20)):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * step + rank))
        loss = model(inputs).square().mean()
        if step == DIES_AT:
            _leave(rank, folder, config.get("signals", {}))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        session.report(loss=loss.item())
        time.sleep(0.0 if "undisturbed" in config else 0.05)
        if rank == 0:
            with (folder / "steps").open("a") as journal:
                journal.write(f"{step}\n")
    session.finish(weights_sha256=weights_sha256(model))


def _leave(rank: int, folder: Path, signals: dict[str, str]) -> None:
    mine = folder / f"rank-{rank}"
    if str(rank) not in signals or mine.exists():
        return
    time.sleep(0.5)  # the step takes a while, so that all ranks are in it
    mine.write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.Signals[signals[str(rank)]])
