"""Handwritten digits: a small CNN on scikit-learn's 1,797 real images, which are in the image.

    training:
      function: trainingrun_runtime.examples.digits:train
      config: {epochs: 20, lr: 0.05, batch_size: 64}

Final metrics: accuracy and loss on images that were held out, and the SHA-256 of the weights.
"""

from dataclasses import dataclass
from typing import Any

import ray.train
import torch
from ray.train.torch import get_device, prepare_model
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy

from trainingrun_runtime import Session

from .repeatable import (
    REPEATABLE,
    Epochs,
    Pace,
    batch,
    configured,
    scores,
    seed_everything,
    set_learning_rate,
    steps_per_epoch,
    weights_sha256,
)


@dataclass(frozen=True, kw_only=True)
class Config(Epochs):
    """Keys of `training.config`."""

    steps: int | None = None
    """Steps in all, instead of `epochs`."""


def network() -> nn.Module:
    """Two convolutions and a classifier for images of 8 x 8 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images, held-out images, and their digits; pixels from 0 to 1."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    seen, held_out = train_test_split(
        range(len(labels)), test_size=0.2, random_state=seed, stratify=digits.target
    )
    return images[seen], images[held_out], labels[seen], labels[held_out]


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    seed_everything(settings.seed)

    images, test_images, labels, test_labels = (
        part.to(get_device()) for part in data(settings.seed)
    )
    per_epoch = steps_per_epoch(len(images), settings.batch_size, workers)
    total = settings.epochs * per_epoch if settings.steps is None else settings.steps

    model = prepare_model(network(), parallel_strategy_kwargs=REPEATABLE)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=0.9)
    session = Session(seed=settings.seed, model=model, optimizer=optimizer)
    set_learning_rate(optimizer, settings.lr)
    pace = Pace(settings.step_seconds, rank)

    for step in session.steps(total):
        pace.wait()
        mine = batch(step, len(images), settings.batch_size, rank, workers, settings.seed)
        loss = cross_entropy(model(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.report(loss=loss.item(), epoch=step // per_epoch)
        pace(step)

    session.finish(**scores(model, test_images, test_labels), weights_sha256=weights_sha256(model))
