"""A training function whose state is large enough that several ranks save it.

Keys of its config: `steps`; `step_seconds`.
"""

import time
from typing import Any

import ray.train
import torch
from ray.train.torch import prepare_model
from torch import nn

from trainingrun_runtime import Session
from trainingrun_runtime.examples.repeatable import seed_everything, weights_sha256

WIDTH = 1024


def a_model() -> nn.Sequential:
    """38 MB, with what AdamW keeps."""
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH),
        nn.Linear(WIDTH, WIDTH),
    )  # fmt: skip


def train(config: dict[str, Any]) -> None:
    """Ends with the digest of the weights."""
    seed_everything(0)
    rank = ray.train.get_context().get_world_rank()
    unused = {"find_unused_parameters": True}
    model = prepare_model(a_model(), parallel_strategy_kwargs=unused)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    session = Session(seed=0, model=model, optimizer=optimizer)
    for step in session.steps(config["steps"]):
        inputs = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(64 * step + rank))
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.report(loss=loss.item())
        time.sleep(config.get("step_seconds", 0.0))
    session.finish(weights_sha256=weights_sha256(model))
