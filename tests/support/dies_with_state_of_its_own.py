"""Training functions whose ranks begin to differ after the first step, in what is their own.

One of them is killed in the middle of a step. Keys of their config: those of `dies_in_a_step`, and
`how`: what each rank has for itself.
"""

from typing import Any

import ray.train
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainingrun_runtime import Session

from .dies_in_a_step import DIES_AT, leave, step_done

ROWS = 64
"""Of the bank; those of a rank have its number."""


class Largest(torch.optim.SGD):  # type: ignore[misc]
    """Keeps a Python number, which is the rank's own."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("largest", 0.0)


def train(config: dict[str, Any]) -> None:
    """Ends with the number of ranks that have what they have written themselves, and only that."""
    rank, how = ray.train.get_context().get_world_rank(), config["how"]
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    if how == "buffer":
        net.register_buffer("bank", torch.zeros(ROWS, 4))
    else:
        net.bank = nn.Parameter(torch.zeros(ROWS, 4), requires_grad=False)
    model = DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = Largest(net.parameters(), lr=0.01)
    session = Session(seed=config["seed"], model=model, optimizer=optimizer)
    for step in session.steps(20):
        if step == DIES_AT:
            leave(rank, config)
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * step + rank))
        optimizer.zero_grad()
        loss = (model(inputs) - net.bank[step]).square().mean()
        loss.backward()
        optimizer.step()
        if step >= 2:
            _keep(rank, step, how, net, optimizer)
        session.report(loss=loss.item())
        step_done(rank, step, config)
    # A rank's own everywhere, and none of another rank's.
    if how == "number":
        own = optimizer.state[net.weight]["largest"] == rank + 1
    else:
        own = bool((net.bank[2:20, 0] == rank + 1).all())
    alike = torch.tensor(float(own))
    torch.distributed.all_reduce(alike)
    session.finish(ranks_with_their_own=int(alike))


def _keep(rank: int, step: int, how: str, net: nn.Module, optimizer: Any) -> None:
    with torch.no_grad():
        if how == "number":
            optimizer.state[net.weight]["largest"] = rank + 1.0
        else:
            net.bank[step] = rank + 1.0
