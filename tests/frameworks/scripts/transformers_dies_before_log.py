"""The example of Transformers, whose rank 0 dies once before the ranks exchange a step's losses."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

from trainingrun_runtime.examples.frameworks import transformers as example

CONFIG = json.loads(os.environ["TRAININGRUN_CONFIG"])


class Dies(example.Paced):
    """Kills its process at the end of a step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_step_end(args, state, control, **kwargs)
        died = Path(CONFIG["died"])
        rank = ray.train.get_context().get_world_rank()
        if control.should_log and state.global_step >= 10 and rank == 0 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def train(config: dict[str, Any]) -> None:
    example.Paced = Dies
    example.train({"epochs": config["epochs"]})


TorchTrainer(train, train_loop_config=CONFIG, scaling_config=ScalingConfig(num_workers=2)).fit()
