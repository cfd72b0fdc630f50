"""Boosted trees for handwritten digits, in an image with `--build-arg EXTRAS=lightgbm`.

    training:
      function: trainingrun_runtime.examples.frameworks.lightgbm:train
      config: {rounds: 60, eta: 0.1, depth: 4}

Final metrics: accuracy on digits that were held out, and the SHA-256 of the trees.
"""

from dataclasses import dataclass
from typing import Any

import ray.train
from lightgbm import Dataset
from lightgbm.callback import CallbackEnv

from trainingrun_runtime.examples.repeatable import Pace, configured
from trainingrun_runtime.frameworks import lightgbm

from .boosting import Rounds, digits, finish


@dataclass(frozen=True, kw_only=True)
class Config(Rounds):
    """Keys of `training.config`."""

    eta: float = 0.1


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
    images, test_images, labels, test_labels = digits(settings.seed)
    mine = Dataset(images, labels)
    pace = Pace(settings.step_seconds, ray.train.get_context().get_world_rank())
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
        callbacks=paced(pace),
    )
    trees = booster.model_to_string().partition("\nparameters:")[0]
    finish(booster.predict(test_images), test_labels, booster.current_iteration(), trees)
