"""A training function whose epochs end with an evaluation that comes after their checkpoint."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import prepare_model

from trainingrun_runtime import Session
from trainingrun_runtime.store import manifest
from trainingrun_runtime.store.bucket import Bucket

STEPS = 5
"""Of each epoch."""


def train(config: dict[str, Any]) -> None:
    """Keys of the config: `accuracies` of the epochs; `bucket`, the run's folder; `dies_in`, the
    epoch in whose evaluation rank 0 is killed once, which leaves the file `died`; `waits`: whether
    each epoch waits for the checkpoint of its end; `evaluation_seconds`.
    """
    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = Session(model=model, optimizer=optimizer)
    accuracies = config["accuracies"]
    for epoch in session.epochs(len(accuracies)):
        for _ in session.steps(STEPS):
            loss = model(torch.ones(4, 1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.report(loss=loss.item())
        if epoch == config.get("dies_in") and not Path(config["died"]).exists():
            _wait_until_saved(session.step, config)
            _die(config)
        time.sleep(config.get("evaluation_seconds", 0))
        session.report(accuracy=accuracies[epoch])
        # Else the next checkpoint is made later than it is due, once this one is uploaded.
        if config.get("waits", True):
            _wait_until_saved(session.step, config)


def _wait_until_saved(step: int, config: dict[str, Any]) -> None:
    if ray.train.get_context().get_world_rank() != 0:
        return
    bucket = Bucket.open(config["bucket"])
    while step not in {saved.step for saved in manifest.committed(bucket)}:
        time.sleep(0.05)


def _die(config: dict[str, Any]) -> None:
    if ray.train.get_context().get_world_rank() == 0:
        Path(config["died"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
