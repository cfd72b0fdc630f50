"""A training function in which one rank takes longer by itself, in the forward pass.

Keys of its config: `slow_rank`; `slow_s` and `step_s`, seconds that it and the others take.
"""

import time
from typing import Any

import ray.train
import torch
from ray.train.torch import prepare_model
from torch import nn

from trainingrun_runtime import Session


def train(config: dict[str, Any]) -> None:
    """Does more steps than any test waits for."""
    slow = ray.train.get_context().get_world_rank() == config["slow_rank"]
    model = prepare_model(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = Session(model=model, optimizer=optimizer)
    for _ in session.steps(100_000):
        time.sleep(config["slow_s"] if slow else config["step_s"])
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
