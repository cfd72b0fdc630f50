"""What does the ranks' agreement cost a step? Two ranks, without it and with it, in turn.

    python tests/benchmarks/step_consensus_cost.py [--rounds 5] [--steps 200] [--step-ms 10]

A step waits and then exchanges a gradient, as the ranks of a training do; with the consensus, each
step also calls `exchange`. CPU time is
that of all threads of rank 0's process.
"""

import argparse
import os
import socket
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("operator", "training_images")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402

from trainingrun_runtime.worker.step_consensus import Place, StepConsensus, StepValues  # noqa: E402

WITHOUT, WITH = "without it", "with it"


@dataclass
class Costs:
    """Of one way to agree, on rank 0, each by step, in seconds."""

    steps: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Of all threads of the process; the mean of a round's steps."""


def work(rank: int, port: int, rounds: int, steps: int, step_s: float, results: Any) -> None:
    """One rank."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    gradient = torch.ones(10_000)
    ways = {WITHOUT: None, WITH: StepConsensus(60.0)}
    costs = {way: Costs() for way in ways}
    number = 0
    for _ in range(rounds):
        for way, consensus in ways.items():
            of_way, used = costs[way], time.process_time()
            for _ in range(steps):
                number += 1
                began = time.perf_counter()
                time.sleep(step_s)
                dist.all_reduce(gradient)
                if consensus is not None:
                    before = time.perf_counter()
                    consensus.exchange(Place.STEP, StepValues(step=number))
                    of_way.calls.append(time.perf_counter() - before)
                of_way.steps.append(time.perf_counter() - began)
            of_way.cpu.append((time.process_time() - used) / steps)
            if consensus is not None:
                consensus.agreed()
            dist.barrier()
    if rank == 0:
        results.put(costs)
    dist.barrier()


def main() -> None:
    """Print step times side by side, and the calls' own time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=10.0)
    arguments = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    results = torch.multiprocessing.get_context("spawn").Queue()
    step_s = arguments.step_ms / 1e3
    ranks = torch.multiprocessing.start_processes(
        work, (port, arguments.rounds, arguments.steps, step_s, results), 2, join=False
    )
    costs: dict[str, Costs] = results.get(timeout=600)
    while not ranks.join():
        pass
    without = costs[WITHOUT]
    step, cpu = statistics.median(without.steps), statistics.median(without.cpu)
    print(f"{WITHOUT}: step {1e3 * step:.3f} ms, CPU {1e3 * cpu:.3f} ms")
    found = costs[WITH]
    ratio = statistics.median(found.steps) / step
    calls, more = statistics.median(found.calls), statistics.median(found.cpu) - cpu
    print(
        f"{WITH}: step {ratio:.4f} x, calls {1e3 * calls:.3f} ms ({100 * calls / step:.3f} % of "
        f"the step), CPU {1e3 * more:+.3f} ms"
    )


if __name__ == "__main__":
    main()
