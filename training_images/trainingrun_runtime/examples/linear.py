"""The smallest example: finds the line y = 3x + 2 in noisy points.

training:
  function: trainingrun_runtime.examples.linear:train
  config: {steps: 200}
"""

from dataclasses import dataclass
from typing import Any

import ray.train
import torch
from ray.train.torch import get_device, prepare_model

from trainingrun_runtime import Session

from .repeatable import (
    REPEATABLE,
    Pace,
    Settings,
    batch,
    configured,
    seed_everything,
    set_learning_rate,
    weights_sha256,
)

SAMPLES = 1024


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Keys of `training.config`."""

    steps: int = 200
    """Steps in all."""
    lr: float = 0.1
    """Learning rate."""
    batch_size: int = 32
    """Samples per worker and step."""


def points(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy points of the line: x and y."""
    x = torch.randn(SAMPLES, 1, generator=torch.Generator().manual_seed(seed))
    noise = torch.randn(SAMPLES, 1, generator=torch.Generator().manual_seed(seed + 1))
    return x, 3 * x + 2 + 0.1 * noise


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
    set_learning_rate(optimizer, settings.lr)
    pace = Pace(settings.step_seconds, rank)

    for step in session.steps(settings.steps):
        pace.wait()
        mine = batch(step, SAMPLES, settings.batch_size, rank, workers, settings.seed)
        loss = torch.nn.functional.mse_loss(model(x[mine]), y[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.report(loss=loss.item())
        pace(step)

    slope, intercept = (value.item() for value in model.parameters())
    session.finish(slope=slope, intercept=intercept, weights_sha256=weights_sha256(model))
