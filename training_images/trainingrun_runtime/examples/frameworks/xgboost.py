"""Boosted trees for handwritten digits, in an image with `--build-arg EXTRAS=xgboost`.

    training:
      function: trainingrun_runtime.examples.frameworks.xgboost:train
      config: {rounds: 60, eta: 0.3, depth: 4}

Final metrics: accuracy on digits that were held out, and the SHA-256 of the trees.
"""

from typing import Any

import ray.train
from xgboost import DMatrix
from xgboost.callback import TrainingCallback

from trainingrun_runtime.examples.repeatable import Pace, configured
from trainingrun_runtime.frameworks import xgboost

from .boosting import Rounds as Config
from .boosting import digits, finish


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
    images, test_images, labels, test_labels = digits(settings.seed)
    mine = DMatrix(images, labels)
    pace = Pace(settings.step_seconds, ray.train.get_context().get_world_rank())
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
        callbacks=[Paced(pace)],
    )
    trees = "".join(booster.get_dump())
    finish(booster.predict(DMatrix(test_images)), test_labels, booster.num_boosted_rounds(), trees)
