"""Handwritten digits that Ray Data loads and transforms, in tasks on all nodes.

    training:
      function: trainingrun_runtime.examples.ray_data:train
      config: {epochs: 5, lr: 0.05, batch_size: 64}

The model, the images and their random shifts are those of `loader`. An interrupted run, also one
that goes on with another number of workers, trains on each image once in each epoch. With the same
number of workers the weights are equal to the last bit.

Final metrics: accuracy and loss on images that were held out, and the SHA-256 of the weights.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import ray.data
import ray.train
import torch
from ray.train.torch import get_device, prepare_model
from torch.nn.functional import cross_entropy

from trainingrun_runtime import ResumableRayDataLoader, Session

from .digits import data, network
from .loader import ShiftedImages
from .repeatable import (
    REPEATABLE,
    Pace,
    configured,
    seed_everything,
    set_learning_rate,
    weights_sha256,
)


@dataclass(frozen=True)
class Config:
    """Keys of `training.config`."""

    epochs: int = 5
    """Times that the data is seen."""
    lr: float = 0.05
    """Learning rate."""
    batch_size: int = 64
    """Samples per worker and step."""
    seed: int = 0
    """Decides weights, split, order and shifts."""
    step_seconds: float = 0.0
    """A step takes at least this many seconds, so that a demonstration can interrupt it."""


class Rows:
    """The shifted images as rows of Ray Data, whose values have names."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._samples = ShiftedImages(images, labels)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image, label = self._samples[index]
        return {"image": image, "label": label}


def brightened(rows: dict[str, Any]) -> dict[str, Any]:
    """What Ray Data does with a batch of rows: here the brightest pixel of each image becomes 1."""
    brightest = rows["image"].max(axis=(1, 2, 3), keepdims=True)
    return {**rows, "image": rows["image"] / np.maximum(brightest, 1e-6)}


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    rank = ray.train.get_context().get_world_rank()
    seed_everything(settings.seed)
    device = get_device()

    images, test_images, labels, test_labels = data(settings.seed)
    loader = ResumableRayDataLoader(
        Rows(images, labels),
        batch_size=settings.batch_size,
        seed=settings.seed,
        transform=lambda rows: rows.map_batches(brightened),
    )
    model = prepare_model(network(), parallel_strategy_kwargs=REPEATABLE)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=0.9)
    session = Session(seed=settings.seed, model=model, optimizer=optimizer, loader=loader)
    set_learning_rate(optimizer, settings.lr)
    pace = Pace(settings.step_seconds, rank)

    for epoch in session.epochs(settings.epochs):
        for batch in session.batches(loader):
            pace.wait()
            loss = cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.report(loss=loss.item(), epoch=epoch)
            pace(session.step)

    with torch.no_grad():
        answers = model(test_images.to(device))
    test_labels = test_labels.to(device)
    session.finish(
        accuracy=(answers.argmax(1) == test_labels).float().mean().item(),
        loss=cross_entropy(answers, test_labels).item(),
        weights_sha256=weights_sha256(model),
    )
