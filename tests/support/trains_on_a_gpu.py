"""Training functions of ranks that share one GPU, and of one alone.

Keys of their config are those of `dies_in_a_step`, and `accumulate`: batches of one step of the
optimizer, each of which is a step of the session; `meets`: what the ranks meet in the step in which
they leave.
"""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import get_device, prepare_model
from torch import nn

from trainingrun_runtime import Session
from trainingrun_runtime.examples.repeatable import REPEATABLE, seed_everything, weights_sha256

from .dies_in_a_step import DIES_AT, leave, step_done

FEATURES = 64


def train(config: dict[str, Any]) -> None:
    """Mixed precision, a scaled loss, BatchNorm and dropout; ends with a digest of the weights."""
    seed_everything(0)
    device, rank = get_device(), ray.train.get_context().get_world_rank()
    width, accumulate = config.get("width", 64), config.get("accumulate", 1)
    norm = [nn.BatchNorm1d(width)] if config.get("norm", True) else []
    layers = [nn.Linear(FEATURES, width), *norm, nn.Dropout(0.5), nn.Linear(width, 1)]
    model = prepare_model(nn.Sequential(*layers), parallel_strategy_kwargs=REPEATABLE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=config.get("fused", True))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0, growth_interval=3)
    session = Session(
        seed=config.get("seed"),
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
    )
    for step in session.steps(20):
        last = step % accumulate == accumulate - 1
        generator = torch.Generator(device).manual_seed(4 * step + rank)
        inputs = torch.randn(32, FEATURES, generator=generator, device=device)
        if step % accumulate == 0:
            optimizer.zero_grad()
        alone = hasattr(model, "no_sync") and not last
        with model.no_sync() if alone else nullcontext():
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(inputs).square().mean() / accumulate
            if step == DIES_AT:
                leave(rank, config)
                _meet(config)
            scaler.scale(loss).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
        session.report(loss=loss.item(), scale=scaler.get_scale())
        step_done(rank, step, config)
    session.finish(weights_sha256=weights_sha256(model))


class Average:
    """Of a model's weights, where they are; it keeps the tensor that it is given back."""

    def __init__(self, weights: torch.Tensor) -> None:
        self._weights = weights.detach().clone()

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"weights": self._weights}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._weights = state["weights"]

    def add(self, weights: torch.Tensor) -> float:
        """Its mean then; an error where they are not on one device."""
        return float(self._weights.lerp_(weights.detach(), 0.1).mean())


def train_with_an_average(config: dict[str, Any]) -> None:
    """A model, and an object of the user's own that has a tensor beside it."""
    seed_everything(0)
    device = get_device()
    model = nn.Linear(FEATURES, 1).to(device)
    optimizer, average = torch.optim.SGD(model.parameters(), lr=0.001), Average(model.weight)
    session = Session(seed=0, model=model, optimizer=optimizer, average=average)
    for step in session.steps(20):
        optimizer.zero_grad()
        model(torch.ones(8, FEATURES, device=device)).square().mean().backward()
        optimizer.step()
        session.report(mean=average.add(model.weight))
        step_done(0, step, config)
    session.finish()


def _meet(config: dict[str, Any]) -> None:
    match config.get("meets"):
        case "full memory":
            torch.empty(2**45, dtype=torch.uint8, device="cuda")
        case "a kernel without end":
            mark = Path(config["folder"]) / "hung"
            if not mark.exists():
                mark.touch()
                for _ in range(600):  # in order: ten minutes at 2 GHz
                    torch.cuda._sleep(2 * 10**9)
                torch.cuda.synchronize()
        case "a bad index":
            table = torch.zeros(4, device="cuda")
            print(table[torch.tensor([2**20], device="cuda")])


def train_for_a_while(config: dict[str, Any]) -> None:
    """Steps of matrix products until the folder has a file `enough`."""
    side = torch.ones(4096, 4096, device=get_device())
    session = Session(seed=0, model=nn.Linear(1, 1).to(get_device()))
    for _ in session.steps(100_000):
        began = time.monotonic()
        while time.monotonic() < began + 0.2:
            side = (side @ side).clamp(max=1)
            torch.cuda.synchronize()
        session.report(one=side[0, 0].item())
        if (Path(config["folder"]) / "enough").exists():
            session.stop()
    session.finish()
