"""What does a seed cost a step? A model of ResNet-50's size, with and without, in turn.

    python tests/benchmarks/last_step_cost.py [--rounds 5] [--steps 20] [--gpu]

A step with a seed sets the random numbers and notes its end, so that it can be saved when another
rank dies. The optimizer works on all of the 161 parameters (25.6 million numbers), and the 159
buffers change; the forward and backward passes are left out, and a wait brings a step to 100 ms: on
a GPU, or with a small share of the images, a step takes that long. Also printed: the time of the
calls alone.

With `--gpu` the model is a transformer of 319 million parameters on an NVIDIA GPU, and nothing is
left out: bfloat16, 16 sequences of 256 tokens, and a step that ends when the GPU has finished it.
"""

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("operator", "training_images")]

import torch  # noqa: E402
from torch import nn  # noqa: E402

from trainingrun_runtime import random_numbers  # noqa: E402
from trainingrun_runtime.checkpoints.gradients import AccumulatedGradients  # noqa: E402
from trainingrun_runtime.checkpoints.snapshot import Position  # noqa: E402
from trainingrun_runtime.checkpoints.stateful_objects import restorable  # noqa: E402
from trainingrun_runtime.survivors.last_step import LastStep  # noqa: E402
from trainingrun_runtime.survivors.watched_tensors import NotWhole  # noqa: E402

STEP_S = 0.1
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))


def parts() -> nn.ModuleList:
    """ResNet-50's convolutions, batch norms and classifier; nothing connects them."""
    found = [nn.Conv2d(3, 64, 7, bias=False), nn.BatchNorm2d(64)]
    inside = 64
    for width, blocks in STAGES:
        for block in range(blocks):
            shapes = [(inside, width, 1), (width, width, 3), (width, 4 * width, 1)]
            shapes += [(inside, 4 * width, 1)] if block == 0 else []
            for a, b, kernel in shapes:
                found += [nn.Conv2d(a, b, kernel, bias=False), nn.BatchNorm2d(b)]
            inside = 4 * width
    return nn.ModuleList([*found, nn.Linear(inside, 1000)])


def on_a_cpu() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """Model, optimizer, and what a step does."""
    model = parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)

    def step() -> None:
        began = time.perf_counter()
        for buffer in model.buffers():
            buffer += 1
        optimizer.step()
        time.sleep(max(0.0, STEP_S - (time.perf_counter() - began)))

    return model, optimizer, step


def on_a_gpu() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """The same."""
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(8192, 1024), encoder, nn.Linear(1024, 8192)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 8192, (16, 256), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()

    return model, optimizer, step


def main() -> None:
    """Print step times side by side, and the calls' own time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--gpu", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, optimizer, train = on_a_gpu() if arguments.gpu else on_a_cpu()
    gradients = AccumulatedGradients([optimizer])
    train()
    last_step = LastStep(
        restorable({"model": model, "optimizer": optimizer}), 0, gradients, {"model"}
    )
    calls: list[float] = []
    noted, took = 0, STEP_S

    def step(number: int, seeded: bool) -> float:
        nonlocal noted, took
        began = time.perf_counter()
        if seeded:
            random_numbers.begin(random_numbers.derive(1, "step", number, 0, 0))
            calls.append(time.perf_counter() - began)
        gradients.step_begins()
        train()
        gradients.step_done()
        if seeded:
            before = time.perf_counter()
            at = Position(step=number)
            last_step.look(took)  # of the former step: on a GPU this one is still under way
            last_step.note(at, {}, lambda _: at)
            calls[-1] += time.perf_counter() - before
        if arguments.gpu:
            torch.cuda.synchronize()
        took = time.perf_counter() - began
        if seeded:
            with contextlib.suppress(NotWhole):
                noted += last_step.noted().position == at
        return took

    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(arguments.rounds):
        for seeded in (False, True):
            times[seeded] += [step(number, seeded) for number in range(1, arguments.steps + 1)]
    without, seeded_s = (statistics.median(times[seeded]) for seeded in (False, True))
    alone = statistics.median(calls)
    print(f"step without a seed {1e3 * without:.3f} ms, with one {1e3 * seeded_s:.3f} ms")
    print(f"ratio {seeded_s / without:.5f}; the calls alone take {1e6 * alone:.0f} µs, a share of")
    print(f"{alone / without:.5f} of a step; {noted} of {len(calls)} steps were noted")


if __name__ == "__main__":
    main()
