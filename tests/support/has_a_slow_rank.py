"""A training function in which one rank takes longer by itself.

Keys of its config: `slow_rank`; `slow_s` and `step_s`, seconds that it and the others take for a
step; `in_data`: until a batch is there, else in the forward pass.
"""

import time
from collections.abc import Iterator
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
    needs_s, in_data = config["slow_s"] if slow else config["step_s"], config["in_data"]
    batches = session.timed(_batches(needs_s if in_data else 0.0))
    for _ in session.steps(100_000):
        next(batches)
        if not in_data:
            time.sleep(needs_s)
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()


def _batches(needs_s: float) -> Iterator[None]:
    while True:
        time.sleep(needs_s)
        yield None
