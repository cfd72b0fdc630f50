"""What the examples of XGBoost and LightGBM have in common: digits for trees, and how it ends."""

import hashlib
from dataclasses import dataclass

import numpy as np
import ray.train

from trainingrun_runtime.examples.digits import data
from trainingrun_runtime.examples.repeatable import Settings

from ...worker.worker import this_worker


@dataclass(frozen=True, kw_only=True)
class Rounds(Settings):
    """Keys of `training.config`."""

    rounds: int = 60
    """Rounds of boosting, each of which adds a tree for each digit."""
    eta: float = 0.3
    """Learning rate."""
    depth: int = 4
    """Of the trees."""


def digits(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """This worker's part of the training images, those held out, and their digits; of 64 pixels."""
    context = ray.train.get_context()
    images, test_images, labels, test_labels = (part.numpy() for part in data(seed))
    mine = slice(context.get_world_rank(), None, context.get_world_size())
    return images[mine].reshape(-1, 64), test_images.reshape(-1, 64), labels[mine], test_labels


def finish(scores: np.ndarray, labels: np.ndarray, rounds: int, trees: str) -> None:
    """Report the final metrics.

    Args:
        scores: Of each held-out image a number for each digit.
        labels: Its digit.
        rounds: That the booster has.
        trees: As text.
    """
    session = this_worker().session
    assert session is not None  # noqa: S101 - the library's train() has made it
    session.finish(
        accuracy=float((scores.argmax(1) == labels).mean()),
        rounds=rounds,
        trees_sha256=hashlib.sha256(trees.encode()).hexdigest(),
    )
