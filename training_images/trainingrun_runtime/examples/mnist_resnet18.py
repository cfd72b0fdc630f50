"""ResNet-18 on MNIST, or on anything else in its format, such as Fashion-MNIST.

    training:
      function: trainingrun_runtime.examples.mnist_resnet18:train
      config: {data: "s3://data/mnist", epochs: 2}

The folder `data` holds the four files of MNIST, such as `train-images-idx3-ubyte`, packed (`.gz`)
or not. Final metrics: accuracy and loss on the test images, and the SHA-256 of the weights.
"""

from dataclasses import dataclass
from typing import Any

import ray.train
import torch
from ray.train.torch import get_device, prepare_model
from torch.nn.functional import cross_entropy

from trainingrun_runtime import Session

from ..store.bucket import Bucket
from . import idx
from .pacing import Pace
from .repeatable import (
    REPEATABLE,
    batch,
    configured,
    seed_everything,
    set_learning_rate,
    steps_per_epoch,
    weights_sha256,
)
from .resnet18 import resnet18

TEST_BATCH = 512


@dataclass(frozen=True)
class Config:
    """Keys of `training.config`."""

    data: str
    """URI of the folder with the files: s3://, gs://, az:// or file://."""
    endpoint: str | None = None
    """URL of an S3-compatible service. Default: $AWS_ENDPOINT_URL, which the run's own is."""
    region: str | None = None
    """Region of the bucket. Default: $AWS_REGION."""
    epochs: int = 2
    """Times that the data is seen."""
    lr: float = 0.05
    """Learning rate."""
    batch_size: int = 64
    """Samples per worker and step."""
    width: int = 64
    """Channels of the first stage; 64 is ResNet-18, less is a smaller relative."""
    seed: int = 0
    """Decides weights and order."""
    step_seconds: float = 0.0
    """A step takes at least this many seconds, so that a demonstration can interrupt it."""


def read(bucket: Bucket, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (pixels from 0 to 1) and labels of `part`, which is `train` or `t10k`.

    Raises:
        ValueError: A file is missing or damaged, or the two do not belong together.
    """
    images = idx.load(bucket, f"{part}-images-idx3-ubyte")
    labels = idx.load(bucket, f"{part}-labels-idx1-ubyte")
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{bucket.root} has {part} images of shape {images.shape} and labels of shape "
            f"{labels.shape}; there must be one label per image"
        )
    return torch.from_numpy(images).unsqueeze(1).float() / 255, torch.from_numpy(labels).long()


def evaluate(
    model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor
) -> tuple[float, float]:
    """Accuracy and mean loss."""
    right = loss = 0.0
    model.eval()
    with torch.no_grad():
        for first in range(0, len(labels), TEST_BATCH):
            wanted = labels[first : first + TEST_BATCH]
            answers = model(images[first : first + TEST_BATCH])
            right += (answers.argmax(1) == wanted).sum().item()
            loss += cross_entropy(answers, wanted, reduction="sum").item()
    return right / len(labels), loss / len(labels)


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    seed_everything(settings.seed)

    bucket = Bucket.open(settings.data, settings.endpoint, settings.region)
    images, labels = (part.to(get_device()) for part in read(bucket, "train"))
    per_epoch = steps_per_epoch(len(images), settings.batch_size, workers)

    model = prepare_model(resnet18(settings.width), parallel_strategy_kwargs=REPEATABLE)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=0.9)
    session = Session(seed=settings.seed, model=model, optimizer=optimizer)
    set_learning_rate(optimizer, settings.lr)
    pace = Pace(settings.step_seconds, rank)

    for step in session.steps(settings.epochs * per_epoch):
        pace.wait()
        mine = batch(step, len(images), settings.batch_size, rank, workers, settings.seed)
        loss = cross_entropy(model(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.report(loss=loss.item(), epoch=step // per_epoch)
        pace(step)

    test_images, test_labels = (part.to(get_device()) for part in read(bucket, "t10k"))
    bare = getattr(model, "module", model)  # one rank may evaluate longer than its peers
    accuracy, test_loss = evaluate(bare, test_images, test_labels)
    session.finish(accuracy=accuracy, loss=test_loss, weights_sha256=weights_sha256(model))
