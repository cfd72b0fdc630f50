"""Handwritten digits that Ray Data loads and transforms, in tasks on all nodes.

    training:
      function: trainingrun_runtime.examples.ray_data:train
      config: {epochs: 5, lr: 0.05, batch_size: 64}

The model, the images, their random shifts and the loop are those of `loader`. An interrupted run,
also one that goes on with another number of workers, trains on each image once in each epoch. With
the same number of workers the weights are equal to the last bit.

Final metrics: accuracy and loss on images that were held out, and the SHA-256 of the weights.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainingrun_runtime import ResumableRayDataLoader

from .loader import ShiftedImages, train_with
from .repeatable import Epochs, configured


@dataclass(frozen=True, kw_only=True)
class Config(Epochs):
    """Keys of `training.config`."""

    epochs: int = 5


def brightened(rows: dict[str, Any]) -> dict[str, Any]:
    """What Ray Data does with a batch of rows: here the brightest pixel of each image becomes 1."""
    brightest = rows["image"].max(axis=(1, 2, 3), keepdims=True)
    return {**rows, "image": rows["image"] / np.maximum(brightest, 1e-6)}


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)

    def loader(samples: ShiftedImages) -> ResumableRayDataLoader:
        return ResumableRayDataLoader(
            samples,
            batch_size=settings.batch_size,
            seed=settings.seed,
            transform=lambda rows: rows.map_batches(brightened),
        )

    train_with(loader, settings)
