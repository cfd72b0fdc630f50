"""The smallest trainings whose interruption changes no bit of their weights, for two workers.

The batches of a step are drawn from its number. Each prints its steps, and ends with the digest of
its weights among its metrics.
"""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint
from ray.train.torch import prepare_model

from trainingrun_runtime import Session
from trainingrun_runtime.examples.repeatable import REPEATABLE, seed_everything, weights_sha256

STEPS = 12
DIES_AT = 7
SAVED_AT = 6
"""Step of the checkpoint before."""


class _Training:
    def __init__(self) -> None:
        seed_everything(0)
        self.rank = ray.train.get_context().get_world_rank()
        self.model = prepare_model(torch.nn.Linear(4, 1), parallel_strategy_kwargs=REPEATABLE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def step(self, number: int) -> float:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * number + self.rank))
        loss = torch.nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        print(f"trained step {number}")
        return float(loss.item())


def with_session(config: dict[str, Any]) -> None:
    """Takes `step_seconds`, so that it can be suspended."""
    training = _Training()
    session = Session(seed=0, model=training.model, optimizer=training.optimizer)
    for step in session.steps(STEPS):
        session.report(loss=training.step(step))
        time.sleep(config.get("step_seconds", 0.0))
    session.finish(weights_sha256=weights_sha256(training.model))


def without_session(config: dict[str, Any]) -> None:
    """Saves after every third step, by Ray alone; a rank dies once the file `dies_at` is there."""
    training = _Training()
    objects = {"model": training.model, "optimizer": training.optimizer}
    found, first = ray.train.get_checkpoint(), 0
    if found is not None:
        with found.as_directory() as folder:
            saved = torch.load(Path(folder, "state.pt"))
        first = saved.pop("step") + 1
        print(f"goes on at step {first}")
        for name, state in saved.items():
            objects[name].load_state_dict(state)
    for step in range(first, STEPS):
        if step == DIES_AT and training.rank == 1 and found is None and "dies_at" in config:
            _die(Path(config["dies_at"]))
        metrics: dict[str, Any] = {"step": step + 1, "loss": training.step(step)}
        if step == STEPS - 1:
            metrics["weights_sha256"] = weights_sha256(training.model)
        with _checkpoint(step, objects) as made:
            saves = training.rank == 0 and step % 3 == 2
            ray.train.report(metrics, checkpoint=made if saves else None)


def _die(told: Path) -> None:
    while not told.exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def _checkpoint(step: int, objects: dict[str, Any]) -> Iterator[Checkpoint]:
    states = {name: each.state_dict() for name, each in objects.items()}
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"step": step, **states}, Path(folder, "state.pt"))
        yield Checkpoint.from_directory(folder)
