"""A training function whose ranks write down where they are and which GPU Ray has given them."""

import json
import os
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch

from trainingrun_runtime import Session

VARIABLES = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "CUDA_VISIBLE_DEVICES")


def train(config: dict[str, Any]) -> None:
    """Writes `<world rank>.json` into the folder `places`."""
    context = ray.train.get_context()
    place = {
        "node": os.environ["NODE_NAME"],
        "ranks": [
            context.get_local_rank(),
            context.get_local_world_size(),
            context.get_node_rank(),
        ],
        "gpus": ray.get_gpu_ids(),
        **{name: os.environ[name] for name in VARIABLES},
    }
    Path(config["places"], f"{context.get_world_rank()}.json").write_text(json.dumps(place))
    session = Session(model=torch.nn.Linear(1, 1))
    for _ in session.steps(1):
        pass
