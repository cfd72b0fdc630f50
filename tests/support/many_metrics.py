"""A training function that reports a metric for each of many classes, and one called `step`."""

import time
from typing import Any

import torch

from trainingrun_runtime import Session

CLASSES = 60


def train(config: dict[str, Any]) -> None:
    """Trains for 16 steps and saves two of them."""
    model = torch.nn.Linear(1, 1)
    session = Session(seed=0, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for step in session.steps(16):
        classes = {f"iou/{number:02d}": float(step) for number in range(CLASSES)}
        session.report(step=100 * step, **classes)
        if step in (5, 11):
            session.save()
        time.sleep(config["step_seconds"])
