"""A training function with all that a training may have, that a rank leaves without notice.

Two models with an optimizer each, a schedule of learning rates, an average of the weights,
activations that are computed again in the backward pass, with the dropout that they had, and
gradients that are scaled and accumulated over three batches. The keys of its config are those of
`dies_in_a_step`, and `recompute`: whether activations are computed again (default) or kept.
"""

from contextlib import nullcontext
from typing import Any

import ray.train
import torch
from ray.train.torch import prepare_model
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from trainingrun_runtime import Session
from trainingrun_runtime.checkpoints.stateful_objects import bare
from trainingrun_runtime.examples.repeatable import REPEATABLE, seed_everything, weights_sha256

from .dies_in_a_step import DIES_AT, leave, step_done

BATCHES = 3
"""Of one step of the optimizers."""


def train(config: dict[str, Any]) -> None:
    """Ends with the digests of all weights."""
    seed_everything(0)
    rank = ray.train.get_context().get_world_rank()
    model, critic = (_a_model(config.get("recompute", True)) for _ in range(2))
    average = AveragedModel(bare(model), multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    session = Session(
        seed=config["seed"],
        model=model,
        critic=critic,
        average=average,
        optimizer=optimizer,
        critic_optimizer=critic_optimizer,
        scheduler=scheduler,
        scaler=scaler,
    )
    for step in session.steps(20):
        optimizer.zero_grad()
        critic_optimizer.zero_grad()
        for number in range(BATCHES):
            generator = torch.Generator().manual_seed(10 * step + 2 * number + rank)
            inputs = torch.randn(8, 4, generator=generator)
            more_follow = number + 1 < BATCHES
            with model.no_sync() if more_follow else nullcontext():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(inputs).square().mean()
                scaler.scale(loss / BATCHES).backward()
            if step == DIES_AT and number == 1:
                leave(rank, config)
        with torch.no_grad():
            wanted = bare(model)(inputs)
        scaler.scale((critic(inputs) - wanted).square().mean()).backward()
        for each in (optimizer, critic_optimizer):
            scaler.step(each)
        scaler.update()
        scheduler.step()
        average.update_parameters(bare(model))
        session.report(loss=loss.item(), scale=scaler.get_scale())
        step_done(rank, step, config)
    digests = {"weights": model, "critic": critic, "average": average}
    session.finish(**{f"{name}_sha256": weights_sha256(each) for name, each in digests.items()})


class Net(nn.Module):  # type: ignore[misc]
    """Two layers with dropout between them."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self._recompute = recompute
        self.hidden = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Tanh())
        self.last = nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self._recompute:
            hidden = checkpoint(self.hidden, inputs, use_reentrant=False)
        else:
            hidden = self.hidden(inputs)
        return self.last(hidden)


def _a_model(recompute: bool) -> nn.Module:
    model: nn.Module = prepare_model(Net(recompute), parallel_strategy_kwargs=REPEATABLE)
    return model
