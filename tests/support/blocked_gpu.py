"""Takes the last step while the GPU is busy with the next one; prints JSON.

    python -m support.blocked_gpu plain|scaled|"not fused"|"not in a row"|"rank 1"

`beside`: whether it was taken before the GPU was done with the next step. `same`: whether it is
what the model had.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import nn

from trainingrun_runtime.checkpoints.encoding import decode
from trainingrun_runtime.checkpoints.gradients import AccumulatedGradients
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.checkpoints.stateful_objects import restorable
from trainingrun_runtime.survivors.last_step import LastStep, Taken

BLOCKS_FOR = 10 * 10**9
"""Ticks of the GPU's clock: 5 s at 2 GHz."""


def main(kind: str) -> None:
    # Rank 0's buffers count, so what another rank saves has none that training changes.
    middle = Scaled() if kind == "rank 1" else nn.BatchNorm1d(1024)
    model = nn.Sequential(nn.Linear(1024, 1024), middle, nn.Linear(1024, 8)).cuda()
    if kind == "not in a row":
        model[0].weight = nn.Parameter(model[0].weight.detach().t().contiguous().t())
    optimizer = torch.optim.AdamW(model.parameters(), fused=kind != "not fused")
    scaler = torch.amp.GradScaler("cuda", enabled=kind == "scaled")
    objects = restorable({"model": model, "optimizer": optimizer, "scaler": scaler})
    gradients = AccumulatedGradients([optimizer])
    last: LastStep | None = None
    for number in range(1, 4):
        gradients.step_begins()
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(64, 1024, device="cuda")).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        gradients.step_done()
        last = last or LastStep(objects, int(kind == "rank 1"), gradients, {"model"})
        last.look(1.0)
        last.note(at := Position(step=number), {}, partial(agreed, at))
    assert last is not None
    wanted = {name: value.cpu() for name, value in model.state_dict().items()}
    torch.cuda.synchronize()
    torch.cuda._sleep(BLOCKS_FOR)
    over = torch.cuda.Event()
    over.record()
    with ThreadPoolExecutor(1) as beside:
        taken, in_time = beside.submit(take, last, over).result()
    state = decode(taken["model"].tree)
    same = state.keys() == wanted.keys() and all(
        torch.equal(torch.as_tensor(state[name]), value) for name, value in wanted.items()
    )
    print(json.dumps({"beside": in_time, "same": same}))


class Scaled(nn.Module):  # type: ignore[misc]
    """Has a buffer of a type that nothing else compares."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("by", torch.full((1024,), 2, dtype=torch.int16))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.by


def agreed(position: Position, _: bool) -> Position:
    return position


def take(last: LastStep, over: torch.cuda.Event) -> tuple[dict[str, Taken], bool]:
    """The last step, and whether it was there before the event was over."""
    noted = last.noted()
    last.fingerprint(noted)
    return last.take(noted.position.step), not over.query()


if __name__ == "__main__":
    main(sys.argv[1])
