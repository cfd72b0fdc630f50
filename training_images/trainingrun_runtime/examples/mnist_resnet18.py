"""ResNet-18 on MNIST, or on anything else in its format, such as Fashion-MNIST.

    training:
      function: trainingrun_runtime.examples.mnist_resnet18:train
      config: {data: "s3://data/mnist", epochs: 2}

The folder `data` holds the four files of MNIST, such as `train-images-idx3-ubyte`, packed (`.gz`)
or not. Final metrics: accuracy and loss on the test images, and the SHA-256 of the weights.
"""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray.train
import torch
from ray.train.torch import get_device, prepare_model
from torch import nn
from torch.nn.functional import cross_entropy

from trainingrun_runtime import Session

from ..store.bucket import Bucket
from ..store.storage_errors import AbsentError
from .repeatable import (
    REPEATABLE,
    Epochs,
    Pace,
    batch,
    configured,
    seed_everything,
    set_learning_rate,
    steps_per_epoch,
    weights_sha256,
)


class Block(nn.Module):
    """Two convolutions, and what came in added to what comes out."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the class says."""
        return torch.relu(self.convolutions(x) + self.shortcut(x))


def resnet18(width: int = 64, classes: int = 10) -> nn.Module:
    """Eight blocks in four stages.

    The stem is a 3 x 3 convolution without pooling: the original's would leave 7 x 7 pixels.

    Args:
        width: Channels of the first stage; each further stage has twice as many.
        classes: Answers to choose from.
    """
    stages: list[nn.Module] = []
    inside = width
    for stage in range(4):
        outside = width * 2**stage
        stages += [Block(inside, outside, 1 if stage == 0 else 2), Block(outside, outside, 1)]
        inside = outside
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(inside, classes),
    )


_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def parse_idx(content: bytes) -> np.ndarray:
    """The array in an IDX file.

    Raises:
        ValueError: It is not IDX, or shorter or longer than its header says.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        raise ValueError("this is not an IDX file: its first bytes are not an IDX header")
    kind = np.dtype(_TYPES[content[2]])
    dimensions = content[3]
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise ValueError("the IDX file ends within its header")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    wanted = header + math.prod(shape) * kind.itemsize
    if len(content) != wanted:
        raise ValueError(f"the IDX file has {len(content)} bytes instead of {wanted}")
    return np.frombuffer(content, kind, offset=header).reshape(shape).astype(kind.newbyteorder("="))


def load_idx(bucket: Bucket, name: str) -> np.ndarray:
    """Read the IDX file `name` or `name.gz`.

    Raises:
        ValueError: Neither is there, or what is there is not IDX.
        StorageError: The store did not answer.
    """
    for key in (name, f"{name}.gz"):
        try:
            content = b"".join(bucket.stream(key))
        except AbsentError:
            continue
        try:
            return parse_idx(gzip.decompress(content) if key.endswith(".gz") else content)
        except (ValueError, OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{bucket.uri(key)} cannot be used: {error}") from None
    raise ValueError(f"{bucket.root} has neither {name} nor {name}.gz")


TEST_BATCH = 512


@dataclass(frozen=True, kw_only=True)
class Config(Epochs):
    """Keys of `training.config`."""

    data: str
    """URI of the folder with the files: s3://, gs://, az:// or file://."""
    endpoint: str | None = None
    """URL of an S3-compatible service. Default: $AWS_ENDPOINT_URL, which the run's own is."""
    region: str | None = None
    """Region of the bucket. Default: $AWS_REGION."""
    epochs: int = 2
    width: int = 64
    """Channels of the first stage; 64 is ResNet-18, less is a smaller relative."""


def read(bucket: Bucket, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (pixels from 0 to 1) and labels of `part`, which is `train` or `t10k`.

    Raises:
        ValueError: A file is missing or damaged, or the two do not belong together.
    """
    images = load_idx(bucket, f"{part}-images-idx3-ubyte")
    labels = load_idx(bucket, f"{part}-labels-idx1-ubyte")
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
