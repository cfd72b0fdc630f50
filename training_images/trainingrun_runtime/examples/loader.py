"""Handwritten digits, shifted at random and loaded by worker processes: data with a loader.

    training:
      function: trainingrun_runtime.examples.loader:train
      config: {epochs: 20, lr: 0.05, batch_size: 64, load_workers: 2}

The model and the images are those of `digits`. An interrupted run, also one that goes on with
another number of workers, trains on each image once in each epoch. With the same number of workers
the weights are equal to the last bit.

Final metrics: accuracy and loss on images that were held out, and the SHA-256 of the weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray.train
import torch
from ray.train.torch import get_device, prepare_model
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from trainingrun_runtime import ResumableDataLoader, Session

from .digits import data, network
from .repeatable import (
    REPEATABLE,
    Epochs,
    Pace,
    configured,
    scores,
    seed_everything,
    set_learning_rate,
    weights_sha256,
)


@dataclass(frozen=True, kw_only=True)
class Config(Epochs):
    """Keys of `training.config`."""

    load_workers: int = 2
    """Processes per worker that load data; 0: the training process loads it."""


class ShiftedImages(Dataset):
    """Images that are shifted by a pixel or not, at random, with their digits."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        by = torch.randint(-1, 2, (2,)).tolist()
        image = torch.roll(self._images[index], by, dims=(-2, -1))
        return {"image": image, "label": self._labels[index]}


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)

    def loader(samples: ShiftedImages) -> ResumableDataLoader:
        return ResumableDataLoader(
            samples,
            batch_size=settings.batch_size,
            seed=settings.seed,
            num_workers=settings.load_workers,
            persistent_workers=settings.load_workers > 0,
        )

    train_with(loader, settings)


def train_with(make_loader: Callable[[ShiftedImages], Any], settings: Epochs) -> None:
    """The training, whoever loads its images.

    Args:
        make_loader: Makes a resumable loader, whose batches have the columns `image` and `label`.
        settings: Of the example.
    """
    rank = ray.train.get_context().get_world_rank()
    seed_everything(settings.seed)
    device = get_device()

    images, test_images, labels, test_labels = data(settings.seed)
    loader = make_loader(ShiftedImages(images, labels))
    model = prepare_model(network(), parallel_strategy_kwargs=REPEATABLE)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=0.9)
    session = Session(seed=settings.seed, model=model, optimizer=optimizer, loader=loader)
    set_learning_rate(optimizer, settings.lr)
    pace = Pace(settings.step_seconds, rank)

    for epoch in session.epochs(settings.epochs):
        for batch in session.batches(loader):
            pace.wait()
            loss = cross_entropy(model(batch["image"].to(device)), batch["label"].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.report(loss=loss.item(), epoch=epoch)
            pace(session.step)

    session.finish(
        **scores(model, test_images.to(device), test_labels.to(device)),
        weights_sha256=weights_sha256(model),
    )
