"""Handwritten digits with Accelerate, in an image with `--build-arg EXTRAS=accelerate`.

    training:
      function: trainingrun_runtime.examples.frameworks.accelerate:train
      config: {epochs: 20, lr: 0.05, batch_size: 64}

Final metrics: accuracy and loss on images that were held out, and the SHA-256 of the weights.
"""

from typing import Any

import ray.train
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import DataLoaderConfiguration
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from trainingrun_runtime.examples.digits import data, network
from trainingrun_runtime.examples.repeatable import (
    REPEATABLE,
    Pace,
    configured,
    scores,
    seed_everything,
    weights_sha256,
)
from trainingrun_runtime.examples.repeatable import Epochs as Config
from trainingrun_runtime.frameworks.accelerate import batches, prepared_session


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    seed_everything(settings.seed)
    images, test_images, labels, test_labels = data(settings.seed)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
        kwargs_handlers=[DistributedDataParallelKwargs(**REPEATABLE)],
    )
    plain = network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=settings.lr, momentum=0.9)
    loader = DataLoader(TensorDataset(images, labels), settings.batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(plain, optimizer, loader)
    session = prepared_session(model=model, optimizer=optimizer, seed=settings.seed)
    pace = Pace(settings.step_seconds, ray.train.get_context().get_world_rank())

    for epoch in session.epochs(settings.epochs):
        for inputs, targets in batches(session, loader):
            pace.wait()
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            session.report(loss=loss.item(), epoch=epoch)
            pace(session.step)

    held_out = (part.to(accelerator.device) for part in (test_images, test_labels))
    session.finish(**scores(model, *held_out), weights_sha256=weights_sha256(plain))
