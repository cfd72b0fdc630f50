"""What does the ranks' agreement cost a step? Two ranks over gloo, with and without it, in turn.

    python tests/benchmarks/step_consensus_cost.py [--rounds 5] [--steps 200] [--step-ms 10]

A step waits and then exchanges a gradient, as the ranks of a training do; with the consensus, each
step also calls `exchange`. Also printed: the time of the calls alone, on rank 0.
"""

import argparse
import os
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("operator", "training_images")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402

from trainingrun_runtime.coordination.step_consensus import (  # noqa: E402
    Place,
    StepConsensus,
    StepValues,
)


def work(rank: int, port: int, rounds: int, steps: int, step_s: float, results: Any) -> None:
    """One rank."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    consensus, gradient = StepConsensus(60.0), torch.ones(10_000)
    times: dict[bool, list[float]] = {False: [], True: []}
    calls: list[float] = []
    number = 0
    for _ in range(rounds):
        for agreeing in (False, True):
            for _ in range(steps):
                number += 1
                began = time.perf_counter()
                time.sleep(step_s)
                dist.all_reduce(gradient)
                if agreeing:
                    before = time.perf_counter()
                    consensus.exchange(Place.STEP, StepValues(step=number))
                    calls.append(time.perf_counter() - before)
                times[agreeing].append(time.perf_counter() - began)
            consensus.settle()
            dist.barrier()
    if rank == 0:
        results.put((times, calls))
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
    times, calls = results.get(timeout=600)
    while not ranks.join():
        pass
    without, agreeing = (statistics.median(times[each]) for each in (False, True))
    alone = statistics.median(calls)
    print(f"step without it {1e3 * without:.3f} ms, with it {1e3 * agreeing:.3f} ms")
    print(f"ratio {agreeing / without:.5f}; the calls alone take {1e6 * alone:.0f} µs, a share of")
    print(f"{alone / without:.5f} of the step")


if __name__ == "__main__":
    main()
