"""Finds the line of `linear`, with the loss as a curve that goes on after an interruption.

training:
  function: trainingrun_runtime.examples.curve:train
  config: {steps: 200, lr: 0.02}
tracking:
  tensorboard: {}
"""

import os
from contextlib import nullcontext
from typing import Any

import ray.train
import torch
from ray.train.torch import get_device, prepare_model
from tensorboardX import SummaryWriter

from trainingrun_runtime import Session

from .linear import SAMPLES, Config, points
from .repeatable import REPEATABLE, Pace, batch, configured, seed_everything


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    seed_everything(settings.seed)
    x, y = (part.to(get_device()) for part in points(settings.seed))

    model = prepare_model(torch.nn.Linear(1, 1), parallel_strategy_kwargs=REPEATABLE)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
    session = Session(seed=settings.seed, model=model, optimizer=optimizer)
    pace = Pace(settings.step_seconds, rank)

    with _writer(rank, session.step) as writer:
        for step in session.steps(settings.steps):
            pace.wait()
            mine = batch(step, SAMPLES, settings.batch_size, rank, workers, settings.seed)
            loss = torch.nn.functional.mse_loss(model(x[mine]), y[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.report(loss=loss.item())
            if writer is not None:
                writer.add_scalar("loss", loss.item(), step)
                writer.flush()  # what is in memory is lost with the process
            pace(step)


def _writer(rank: int, first_step: int) -> Any:
    """One rank writes; what an interrupted process wrote of later steps is not shown."""
    if rank != 0:
        return nullcontext()
    return SummaryWriter(os.environ.get("TENSORBOARD_LOGGING_DIR"), purge_step=first_step)
