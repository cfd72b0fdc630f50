"""Boosted trees for handwritten digits, in an image with `--build-arg EXTRAS=lightgbm`.

    training:
      function: trainingrun_runtime.examples.frameworks.lightgbm:train
      config: {rounds: 60, eta: 0.1, depth: 4}

Final metrics: accuracy on digits that were held out, and the SHA-256 of the trees.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import ray.train
from lightgbm import Dataset
from lightgbm.callback import CallbackEnv

from trainingrun_runtime.examples.digits import data
from trainingrun_runtime.examples.repeatable import Pace, configured
from trainingrun_runtime.frameworks import lightgbm

from ...worker.worker import this_worker


@dataclass(frozen=True)
class Config:
    """Keys of `training.config`."""

    rounds: int = 60
    """Rounds of boosting, each of which adds a tree for each digit."""
    eta: float = 0.1
    """Learning rate."""
    depth: int = 4
    """Of the trees."""
    seed: int = 0
    """Decides the split."""
    step_seconds: float = 0.0
    """A round takes at least this many seconds, so that a demonstration can interrupt it."""


def paced(pace: Pace) -> list[Any]:
    """Callbacks by which rounds take a while, and are noted."""

    def before(env: CallbackEnv) -> None:
        pace.wait()

    def after(env: CallbackEnv) -> None:
        pace(env.iteration)

    before.before_iteration = True  # type: ignore[attr-defined]
    return [before, after]


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    images, test_images, labels, test_labels = (part.numpy() for part in data(settings.seed))
    images, test_images = images.reshape(-1, 64), test_images.reshape(-1, 64)
    mine = Dataset(images[rank::workers], labels[rank::workers])
    parameters = {
        "objective": "multiclass",
        "num_class": 10,
        "learning_rate": settings.eta,
        "max_depth": settings.depth,
        "min_data_in_leaf": 5,
        "tree_learner": "data",
        "pre_partition": True,
        "deterministic": True,
        "force_row_wise": True,
        "seed": settings.seed,
        "num_threads": 1,
        "verbosity": -1,
    }
    booster = lightgbm.train(
        parameters,
        mine,
        settings.rounds,
        valid_sets=[mine],
        valid_names=["train"],
        callbacks=paced(Pace(settings.step_seconds, rank)),
    )
    answers = booster.predict(test_images).argmax(1)
    session = this_worker().session
    assert session is not None  # noqa: S101 - train() has made it
    trees = booster.model_to_string().partition("\nparameters:")[0]
    session.finish(
        accuracy=float((answers == test_labels).mean()),
        rounds=booster.current_iteration(),
        trees_sha256=hashlib.sha256(trees.encode()).hexdigest(),
    )
