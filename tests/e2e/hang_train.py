"""The digits example as a script, in which a rank hangs once: `hang` of the config says how."""

import json
import os
import threading
from pathlib import Path

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

from trainingrun_runtime.examples import digits
from trainingrun_runtime.examples.repeatable import Pace

HANGS_BEFORE = 100
"""The step, of rank 1."""


def loop():
    while True:
        pass


def lock():
    held = threading.Lock()
    with held:
        held.acquire()


def train(config):
    hang = {"loop": loop, "lock": lock}[config.pop("hang")]
    marker = Path(os.environ["STEP_LOG_FOLDER"], "hung")

    class Hanging(Pace):
        def __init__(self, seconds, rank):
            super().__init__(seconds, rank)
            self._hangs, self._done = rank == 1, 0

        def wait(self):
            super().wait()
            if self._hangs and self._done == HANGS_BEFORE and not marker.exists():
                marker.touch()
                hang()

        def __call__(self, step):
            super().__call__(step)
            self._done = step + 1

    digits.Pace = Hanging
    digits.train(config)


config = json.loads(os.environ["TRAININGRUN_CONFIG"])
TorchTrainer(train, train_loop_config=config, scaling_config=ScalingConfig(num_workers=2)).fit()
