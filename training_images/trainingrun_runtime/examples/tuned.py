"""A training whose learning rate, momentum and batch size a sweep finds; the digits again.

    training:
      function: trainingrun_runtime.examples.tuned:train
      config: {epochs: 10}
    sweep:
      samples: 8
      metric: accuracy
      mode: max
      scheduler: ASHA
      graceSteps: 40
      space:
      - {name: lr, min: 0.001, max: 0.3, scale: log}
      - {name: momentum, values: [0, 0.9]}
      - {name: batch_size, values: [32, 64]}

After each epoch the images that are held out are classified, and `accuracy` is reported: it is what
trials are compared by.
"""

from dataclasses import dataclass
from typing import Any

import ray.train
import torch
from ray.train.torch import get_device, prepare_model
from torch.nn.functional import cross_entropy

from trainingrun_runtime import Session

from .digits import data, network
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

    epochs: int = 10
    momentum: float = 0.9
    """Momentum of SGD."""


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    seed_everything(settings.seed)

    images, test_images, labels, test_labels = (
        part.to(get_device()) for part in data(settings.seed)
    )
    model = prepare_model(network(), parallel_strategy_kwargs=REPEATABLE)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)
    session = Session(seed=settings.seed, model=model, optimizer=optimizer)
    set_learning_rate(optimizer, settings.lr)
    for group in optimizer.param_groups:  # a population's trial may begin with another one's
        group["momentum"] = settings.momentum
    pace = Pace(settings.step_seconds, rank)
    per_epoch = steps_per_epoch(len(images), settings.batch_size, workers)

    def accuracy() -> float:
        return scores(model, test_images, test_labels)["accuracy"]

    for _ in session.epochs(settings.epochs):
        for _ in session.steps(per_epoch):
            pace.wait()
            mine = batch(
                session.step, len(images), settings.batch_size, rank, workers, settings.seed
            )
            loss = cross_entropy(model(images[mine]), labels[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.report(loss=loss.item())
            pace(session.step)
        session.report(accuracy=accuracy())
    session.finish(accuracy=accuracy(), weights_sha256=weights_sha256(model))
