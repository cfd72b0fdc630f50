"""Handwritten digits with JAX, in an image with `--build-arg EXTRAS=jax`.

    training:
      function: trainingrun_runtime.examples.frameworks.jax:train
      config: {epochs: 20, lr: 0.1, batch_size: 64}

Final metrics: accuracy on images that were held out, and the SHA-256 of the weights.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import ray.train
from jax.sharding import NamedSharding, PartitionSpec

from trainingrun_runtime import Session
from trainingrun_runtime.examples.digits import data
from trainingrun_runtime.examples.repeatable import (
    Epochs,
    Pace,
    batch,
    configured,
    seed_everything,
    steps_per_epoch,
)
from trainingrun_runtime.frameworks.jax import Tree, connect

HIDDEN = 64
"""Units of the hidden layer."""
MOMENTUM = 0.9


@dataclass(frozen=True, kw_only=True)
class Config(Epochs):
    """Keys of `training.config`."""

    lr: float = 0.1


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    seed_everything(settings.seed)
    connect()
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    images, test_images, labels, test_labels = (part.numpy() for part in data(settings.seed))

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    by_worker = NamedSharding(mesh, PartitionSpec("data"))
    params = _network(settings.seed)
    momentum = jax.tree.map(jnp.zeros_like, params)
    kept = Tree(jax.device_put({"params": params, "momentum": momentum}, everywhere))
    session = Session(seed=settings.seed, state=kept)
    pace = Pace(settings.step_seconds, rank)

    update = jax.jit(_updated)
    per_epoch = steps_per_epoch(len(images), settings.batch_size, workers)
    for step in session.steps(settings.epochs * per_epoch):
        pace.wait()
        chosen = batch(step, len(images), settings.batch_size, rank, workers, settings.seed).numpy()
        inputs, targets = (
            jax.make_array_from_process_local_data(by_worker, part[chosen])
            for part in (images, labels)
        )
        kept.tree, loss = update(kept.tree, inputs, targets, settings.lr)
        session.report(loss=float(loss))
        pace(step)

    weights = {name: value.addressable_data(0) for name, value in kept.tree["params"].items()}
    answers = np.asarray(_answers(weights, test_images)).argmax(1)
    session.finish(accuracy=float((answers == test_labels).mean()), weights_sha256=_sha256(weights))


def _network(seed: int) -> dict[str, jax.Array]:
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "hidden": jax.random.normal(first, (64, HIDDEN)) / 8,
        "hidden_bias": jnp.zeros(HIDDEN),
        "output": jax.random.normal(second, (HIDDEN, 10)) / 8,
        "output_bias": jnp.zeros(10),
    }


def _answers(params: Any, images: Any) -> Any:
    flat = images.reshape(len(images), -1)
    hidden = jax.nn.relu(flat @ params["hidden"] + params["hidden_bias"])
    return hidden @ params["output"] + params["output_bias"]


def _updated(state: Any, images: Any, labels: Any, lr: float) -> tuple[Any, Any]:
    """A step; the mean over all workers' samples has JAX add up their gradients."""

    def loss_of(params: Any) -> Any:
        chances = jax.nn.log_softmax(_answers(params, images))
        return -jnp.take_along_axis(chances, labels[:, None], 1).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state["params"])
    momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g, state["momentum"], gradients)
    params = jax.tree.map(lambda p, m: p - lr * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, loss


def _sha256(weights: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode() + np.asarray(value).tobytes())
    return digest.hexdigest()
