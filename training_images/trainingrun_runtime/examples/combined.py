"""Handwritten digits, with techniques that people combine; the session restores all of them.

    training:
      function: trainingrun_runtime.examples.combined:train
      config: {steps: 300, batch_size: 16, accumulate: 4}

Mixed precision with a scaled loss, gradients of several batches added up, activations computed
again in the backward pass, dropout, an optimizer for each of two parts of the model, and a moving
average of the weights. The images are those of `digits`.

Final metrics: accuracy and loss of the average on images that were held out, the scale of the loss,
and the SHA-256 of the weights and of their average.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import ray.train
import torch
from ray.train.torch import get_device, prepare_model
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from trainingrun_runtime import Session

from .digits import data, network
from .repeatable import (
    REPEATABLE,
    Pace,
    Settings,
    batch,
    configured,
    scores,
    seed_everything,
    set_learning_rate,
    weights_sha256,
)


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Keys of `training.config`."""

    steps: int = 300
    """Steps of the optimizers in all."""
    lr: float = 0.05
    """Learning rate of the convolutions."""
    classifier_lr: float = 0.005
    """Learning rate of the classifier."""
    batch_size: int = 16
    """Samples per worker and batch."""
    accumulate: int = 4
    """Batches whose gradients are added up for a step."""
    average: float = 0.95
    """Share of the former average of the weights in the next one."""


class Network(nn.Module):
    """The network of `digits` with dropout, which keeps no activations of its convolutions."""

    def __init__(self) -> None:
        super().__init__()
        *convolutions, self.classifier = network()
        self.convolutions = nn.Sequential(*convolutions, nn.Dropout(0.1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """A number for each digit."""
        return self.classifier(checkpoint(self.convolutions, images, use_reentrant=False))


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    seed_everything(settings.seed)
    device = get_device()

    images, test_images, labels, test_labels = (part.to(device) for part in data(settings.seed))
    net = Network()
    model = prepare_model(net, parallel_strategy_kwargs=REPEATABLE)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(settings.average))
    optimizer = torch.optim.SGD(net.convolutions.parameters(), lr=settings.lr, momentum=0.9)
    classifier_optimizer = torch.optim.AdamW(net.classifier.parameters())
    scaler = torch.amp.GradScaler(device.type)
    session = Session(
        seed=settings.seed,
        model=model,
        average=average,
        optimizer=optimizer,
        classifier_optimizer=classifier_optimizer,
        scaler=scaler,
    )
    set_learning_rate(optimizer, settings.lr)
    set_learning_rate(classifier_optimizer, settings.classifier_lr)
    pace = Pace(settings.step_seconds, rank)

    for step in session.steps(settings.steps):
        pace.wait()
        for number in range(settings.accumulate):
            # Which batch of the whole training it is.
            drawn = step * settings.accumulate + number
            mine = batch(drawn, len(images), settings.batch_size, rank, workers, settings.seed)
            more_follow = number + 1 < settings.accumulate
            # The ranks exchange their gradients once, with the last batch.
            with model.no_sync() if more_follow and workers > 1 else nullcontext():
                with torch.autocast(device.type, dtype=torch.bfloat16):
                    loss = cross_entropy(model(images[mine]), labels[mine])
                scaler.scale(loss / settings.accumulate).backward()
        for each in (optimizer, classifier_optimizer):
            scaler.step(each)
            each.zero_grad()
        scaler.update()
        average.update_parameters(net)
        session.report(loss=loss.item())
        pace(step)

    average.eval()
    session.finish(
        **scores(average, test_images, test_labels),
        scale=scaler.get_scale(),
        weights_sha256=weights_sha256(net),
        average_sha256=weights_sha256(average),
    )
