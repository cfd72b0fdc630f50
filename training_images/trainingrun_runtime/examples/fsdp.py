"""A small transformer on handwritten digits, sharded by FSDP2: each worker holds a part of it.

    training:
      function: trainingrun_runtime.examples.fsdp:train
      config: {steps: 300, lr: 0.002, batch_size: 32}

The session takes it as any other model: each rank saves its own part, and a run with another number
of workers, `replicas` or `tensor_parallel` restores it. Final metrics: accuracy and loss on images
that were held out, and the SHA-256 of the whole weights.
"""

from dataclasses import dataclass
from typing import Any

import ray.train
import torch
from ray.train.torch import get_device
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from trainingrun_runtime import Session

from .digits import data
from .repeatable import (
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
    """Steps in all."""
    lr: float = 0.002
    """Learning rate."""
    batch_size: int = 32
    """Samples per worker and step; workers that share matrices take the same ones."""
    width: int = 32
    """Numbers by which a row of an image is represented."""
    layers: int = 2
    """Blocks of the transformer."""
    replicas: int = 1
    """Workers that hold the same part (HSDP); the number of workers is a multiple of it."""
    tensor_parallel: int = 1
    """Workers that share each matrix of an MLP; likewise."""


class Block(nn.Module):
    """Attention with four heads, and an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = 4
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Batches of sequences, and the same again."""
        images, rows, width = x.shape
        parts = self.query_key_value(self.before_attention(x))
        query, key, value = parts.view(images, rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value)
        x = x + self.out(attended.transpose(1, 2).reshape(images, rows, width))
        return x + self.mlp(self.before_mlp(x))


class Transformer(nn.Module):
    """Reads an image of 8 x 8 pixels row by row."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.row = nn.Linear(8, width)
        self.position = nn.Parameter(0.1 * torch.randn(8, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.digit = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """A number for each digit."""
        x = self.row(images.squeeze(1)) + self.position
        for block in self.blocks:
            x = block(x)
        return self.digit(x.mean(1))


def shard(model: Transformer, mesh: DeviceMesh) -> None:
    """Leave each rank with its part of the parameters.

    Args:
        model: the same on all ranks.
        mesh: with the dimensions `replicate`, `shard` and `tensor`.
    """
    if mesh["tensor"].size() > 1:
        for block in model.blocks:
            plan = {"mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()}
            parallelize_module(block, mesh["tensor"], plan)
    data_mesh = mesh["replicate", "shard"] if mesh["replicate"].size() > 1 else mesh["shard"]
    for module in (*model.blocks, model):
        fully_shard(module, mesh=data_mesh)


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    seed_everything(settings.seed)

    images, test_images, labels, test_labels = (
        part.to(get_device()) for part in data(settings.seed)
    )
    tensor = settings.tensor_parallel
    shards = workers // (settings.replicas * tensor)
    mesh = init_device_mesh(
        get_device().type,
        (settings.replicas, shards, tensor),
        mesh_dim_names=("replicate", "shard", "tensor"),
    )
    model = Transformer(settings.width, settings.layers).to(get_device())
    shard(model, mesh)
    # foreach=False: with tensor parallelism the parameters are on different meshes.
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, foreach=False)
    session = Session(seed=settings.seed, model=model, optimizer=optimizer)
    set_learning_rate(optimizer, settings.lr)
    pace = Pace(settings.step_seconds, rank)

    for step in session.steps(settings.steps):
        pace.wait()
        mine = batch(
            step, len(images), settings.batch_size, rank // tensor, workers // tensor, settings.seed
        )
        loss = cross_entropy(model(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.report(loss=loss.item())
        pace(step)

    session.finish(**scores(model, test_images, test_labels), weights_sha256=weights_sha256(model))
