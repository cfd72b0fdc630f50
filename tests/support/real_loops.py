"""Training functions whose loops are not one run over `steps()`, for two workers.

Each trains a line, ends with the digest of its weights, and takes `step_seconds`, so that it can be
interrupted; where it is, and what it evaluated, is among its metrics.
"""

import contextlib
import datetime
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import torch
from ray.train.torch import prepare_model

from trainingrun_runtime import Session
from trainingrun_runtime.examples.repeatable import REPEATABLE, seed_everything, weights_sha256


class Notes:
    """What a training keeps beside its weights, of every type that people use."""

    def __init__(self) -> None:
        self.best = np.float64(1e9)
        self.recent: deque[float] = deque(maxlen=3)
        self.evaluated: list[int] = []
        self.folder = Path("/data")
        self.began = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Loader:
    """Batches of this rank's own, in an order that it draws as it goes."""

    def __init__(self, rank: int) -> None:
        self.random = np.random.default_rng([7, rank])
        self.drawn = 0

    def batch(self) -> torch.Tensor:
        return torch.from_numpy(self.random.standard_normal((8, 1)).astype(np.float32))

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.bit_generator.state, "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.random.bit_generator.state = state["random"]
        self.drawn = state["drawn"]


class Training:
    """A model, its data and its session."""

    def __init__(self, config: dict[str, Any], seed: int | None = None) -> None:
        seed_everything(0)
        self.pause = config.get("step_seconds", 0.0)
        self.rank = ray.train.get_context().get_world_rank()
        self.model = prepare_model(torch.nn.Linear(1, 1), parallel_strategy_kwargs=REPEATABLE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.notes, self.loader = Notes(), Loader(self.rank)
        self.noise = torch.Generator().manual_seed(self.rank)
        self.session = Session(
            seed=seed,
            model=self.model,
            optimizer=self.optimizer,
            notes=self.notes,
            loader=self.loader,
            noise=self.noise,
        )

    def step(self, x: torch.Tensor | None = None) -> float:
        self.optimizer.zero_grad()
        loss = self.backward(x)
        self.optimizer.step()
        return loss

    def backward(self, x: torch.Tensor | None = None) -> float:
        x = self.loader.batch() if x is None else x
        self.loader.drawn += 1
        y = 3 * x + 2 + 0.1 * torch.randn(x.shape, generator=self.noise)
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.notes.recent.append(loss.item())
        self.notes.best = min(self.notes.best, np.float64(loss.item()))
        self.session.report(loss=loss.item())
        time.sleep(self.pause)
        return float(loss.item())

    def evaluate(self) -> float:
        time.sleep(self.pause)
        self.notes.evaluated.append(self.session.step)
        x = torch.linspace(-1, 1, 16).unsqueeze(1)
        with torch.no_grad():
            return float(torch.nn.functional.mse_loss(self.model(x), 3 * x + 2).item())

    def finish(self) -> None:
        self.session.finish(
            weights_sha256=weights_sha256(self.model),
            steps=self.session.step,
            drawn=self.loader.drawn,
            evaluated=str(self.notes.evaluated),
            recent=str(list(self.notes.recent)),
        )


def epochs(config: dict[str, Any]) -> None:
    """Epochs with an evaluation and a checkpoint after each, until rank 1 alone has enough."""
    training = Training(config)
    for _ in training.session.epochs(100):
        for step in training.session.steps(10):
            training.step()
            if step == 33:
                if training.rank == 1:
                    training.session.stop()
                training.session.save()
        training.session.report(error=training.evaluate())
        training.session.save()
    training.finish()


def loops(config: dict[str, Any]) -> None:
    """A loop that every rank leaves by `break`, then larger totals, until rank 0 has enough."""
    training = Training(config)
    for step in training.session.steps(1000):
        training.step()
        if step == 9:
            break
    training.session.save()
    for total in (20, 30, 40, 50):
        for _ in training.session.steps(total):
            training.step()
        if training.session.step == 30 and training.rank == 0:
            training.session.stop()
    training.evaluate()
    training.finish()


def draws(config: dict[str, Any]) -> None:
    """Draws which samples to train on, and in each epoch their order; with a seed of the session.

    Before that, a loop without epochs, after which it draws noise.
    """
    training = Training(config, seed=3)
    session = training.session
    split = torch.randperm(100)
    require_alike(split)
    samples = torch.linspace(-1, 1, 100).unsqueeze(1)[split[:80]]
    for _ in session.steps(5):
        training.step()
    noise = torch.randn(80, 1)
    for _ in session.epochs(3):
        order = torch.randperm(80)
        require_alike(order)
        for _ in session.steps(10):
            first = 8 * session.steps_of_epoch
            training.step((samples + 0.1 * noise)[order[first : first + 8]])
    training.evaluate()
    training.finish()


def require_alike(drawn: torch.Tensor) -> None:
    """Of a split, or an order, each rank takes a part: it has to be the same on all of them."""
    of_ranks = [torch.empty_like(drawn) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(of_ranks, drawn)
    assert all(one.equal(drawn) for one in of_ranks)


def averages(config: dict[str, Any]) -> None:
    """Each rank trains alone, and the ranks average their weights in every tenth step."""
    training = Training(config)
    for step in training.session.steps(30):
        with training.model.no_sync():
            training.step()
        if step % 10 == 9:
            with torch.no_grad():
                for parameter in training.model.parameters():
                    torch.distributed.all_reduce(parameter)
                    parameter /= 2
    training.evaluate()
    training.finish()


def accumulates(config: dict[str, Any]) -> None:
    """Gradients of an epoch's steps are used in its middle, and after its loop."""
    training = Training(config, seed=3)
    for _ in training.session.epochs(3):
        for _ in training.session.steps(10):
            half = training.session.steps_of_epoch == 4
            with contextlib.nullcontext() if half else training.model.no_sync():
                training.backward()
            if half:
                training.optimizer.step()
                training.optimizer.zero_grad()
        for parameter in training.model.parameters():
            torch.distributed.all_reduce(parameter.grad)
        training.optimizer.step()
        training.optimizer.zero_grad()
    training.evaluate()
    training.finish()


def writes_past_pytorch(config: dict[str, Any]) -> None:
    """Writes to a large table through NumPy, in each step and at the end; also reports to Ray."""
    table = torch.nn.Embedding(100_000, 4)
    torch.nn.init.zeros_(table.weight)
    rows = table.weight.detach().numpy()
    session = Session(table=table)
    for step in session.steps(6):
        rows[step] = step + 1
        if step == 2:
            session.save()
        if step == 3:  # its upload is under way
            ray.train.report({"beside": 1.0})
    session.save()
    rows[10:20] = 7


def swallows(config: dict[str, Any]) -> None:
    """Catches whatever its loop raises, and returns as if it had trained."""
    try:
        loops(config)
    except Exception as error:
        print(f"never mind: {error}")


def refused(config: dict[str, Any]) -> None:
    """Does all that a session refuses, one after the other, and writes down what it was told."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    told: list[str] = []

    def note(kind: type[Exception], action: Callable[[], object]) -> None:
        try:
            action()
        except kind as error:
            told.append(str(error))

    model = torch.nn.Linear(4, 4)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    note(TypeError, lambda: Session(optimizer=optimizer))
    note(TypeError, lambda: Session(loader=[1, 2, 3]))
    notes = Notes()
    session = Session(notes=notes)
    note(RuntimeError, lambda: Session(notes=notes))
    notes.folder = lambda: None  # type: ignore[assignment]
    note(TypeError, lambda: list(session.steps(5)))
    notes.folder = Path("/data")
    note(ValueError, lambda: [list(session.steps(5)) for _ in range(2)])
    try:
        for step in session.steps(1000):
            time.sleep(0.01)
            if step == 8 and ray.train.get_context().get_world_rank() == 0:
                break
        session.save()
    except RuntimeError as error:
        told.append(str(error))
    if ray.train.get_context().get_world_rank() == 0:
        Path(config["told"]).write_text("\n".join(told))
    raise ValueError("all of it was refused")


def loses_silently(config: dict[str, Any]) -> None:
    """Trains with an optimizer that the session does not have, in a loop of its own, or on each
    rank a model of its own.
    """
    fault, model = config["fault"], torch.nn.Linear(1, 1)
    if fault != "model not wrapped":
        model = prepare_model(model)
    optimizer = torch.optim.Adam(model.parameters())
    given = {} if fault == "optimizer not given" else {"optimizer": optimizer}
    session = Session(model=model, **given)
    for _ in range(1000) if fault == "loop of its own" else session.steps(1000):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        time.sleep(0.05)
