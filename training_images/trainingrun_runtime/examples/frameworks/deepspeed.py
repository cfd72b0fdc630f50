"""Handwritten digits with DeepSpeed, in an image with `--build-arg EXTRAS=deepspeed`.

    training:
      function: trainingrun_runtime.examples.frameworks.deepspeed:train
      config: {epochs: 20, lr: 0.003, batch_size: 64, zero_stage: 2}

Final metrics: accuracy and loss on images that were held out, and the SHA-256 of the weights.
"""

from dataclasses import dataclass
from typing import Any

import deepspeed
import ray.train
import torch
from ray.train.torch import get_device
from torch.nn.functional import cross_entropy

from trainingrun_runtime.examples.digits import data, network
from trainingrun_runtime.examples.repeatable import (
    Epochs,
    Pace,
    batch,
    configured,
    scores,
    seed_everything,
    steps_per_epoch,
    weights_sha256,
)
from trainingrun_runtime.frameworks.deepspeed import prepared_session


@dataclass(frozen=True, kw_only=True)
class Config(Epochs):
    """Keys of `training.config`."""

    lr: float = 0.003
    zero_stage: int = 2
    """What ZeRO shares out among the workers: 0 nothing, 1 the optimizer's state, 2 gradients, too,
    3 weights, too."""


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    seed_everything(settings.seed)
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    images, test_images, labels, test_labels = (
        part.to(get_device()) for part in data(settings.seed)
    )
    plain = network()
    engine, *_ = deepspeed.initialize(
        model=plain,
        optimizer=torch.optim.AdamW(plain.parameters(), lr=settings.lr),
        config={
            "train_micro_batch_size_per_gpu": settings.batch_size,
            "zero_optimization": {"stage": settings.zero_stage},
        },
    )
    session = prepared_session(engine, seed=settings.seed)
    pace = Pace(settings.step_seconds, rank)

    per_epoch = steps_per_epoch(len(images), settings.batch_size, workers)
    for step in session.steps(settings.epochs * per_epoch):
        pace.wait()
        mine = batch(step, len(images), settings.batch_size, rank, workers, settings.seed)
        loss = cross_entropy(engine(images[mine]), labels[mine])
        engine.backward(loss)
        engine.step()
        session.report(loss=loss.item(), epoch=step // per_epoch)
        pace(step)

    engine.eval()
    found = scores(engine, test_images, test_labels)
    with deepspeed.zero.GatheredParameters(list(plain.parameters())):
        digest = weights_sha256(plain)
    session.finish(**found, weights_sha256=digest)
