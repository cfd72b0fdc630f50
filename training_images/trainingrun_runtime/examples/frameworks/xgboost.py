"""Boosted trees for handwritten digits, in an image with `--build-arg EXTRAS=xgboost`.

    training:
      function: trainingrun_runtime.examples.frameworks.xgboost:train
      config: {rounds: 60, eta: 0.3, depth: 4}

Final metrics: accuracy on digits that were held out, and the SHA-256 of the trees.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import ray.train
from xgboost import DMatrix
from xgboost.callback import TrainingCallback

from trainingrun_runtime.examples.digits import data
from trainingrun_runtime.examples.repeatable import Pace, configured
from trainingrun_runtime.frameworks import xgboost

from ...worker.worker import this_worker


@dataclass(frozen=True)
class Config:
    """Keys of `training.config`."""

    rounds: int = 60
    """Rounds of boosting, each of which adds a tree for each digit."""
    eta: float = 0.3
    """Learning rate."""
    depth: int = 4
    """Of the trees."""
    seed: int = 0
    """Decides the split."""
    step_seconds: float = 0.0
    """A round takes at least this many seconds, so that a demonstration can interrupt it."""


class Paced(TrainingCallback):
    """Rounds take a while, and are noted."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """A round begins."""
        self._pace.wait()
        return False

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """A round is done."""
        self._pace(model.num_boosted_rounds() - 1)
        return False


def train(config: dict[str, Any]) -> None:
    """Train on one worker."""
    settings = configured(Config, config)
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    images, test_images, labels, test_labels = (part.numpy() for part in data(settings.seed))
    images, test_images = images.reshape(-1, 64), test_images.reshape(-1, 64)
    mine = DMatrix(images[rank::workers], labels[rank::workers])
    parameters = {
        "objective": "multi:softprob",
        "num_class": 10,
        "eta": settings.eta,
        "max_depth": settings.depth,
        "seed": settings.seed,
        "nthread": 1,
    }
    booster = xgboost.train(
        parameters,
        mine,
        settings.rounds,
        evals=[(mine, "train")],
        verbose_eval=False,
        callbacks=[Paced(Pace(settings.step_seconds, rank))],
    )
    answers = booster.predict(DMatrix(test_images)).argmax(1)
    session = this_worker().session
    assert session is not None  # noqa: S101 - train() has made it
    session.finish(
        accuracy=float((answers == test_labels).mean()),
        rounds=booster.num_boosted_rounds(),
        trees_sha256=hashlib.sha256("".join(booster.get_dump()).encode()).hexdigest(),
    )
