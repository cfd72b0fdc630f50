"""What does it cost a step that each rank measures what it waits for? Two ranks over gloo.

    python tests/benchmarks/rank_times_cost.py [--rounds 4] [--steps 100] [--step-ms 100]

A step waits and then does a backward pass of a small model in DistributedDataParallel, in turn with
PyTorch's own measurement of every 100th pass and with `TimesReporter`, which has it measure more
often, reads it, and reports to an actor of a real Ray. Also printed: the time of the reporter's
calls alone, as a share of the steps, on rank 0.
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

import ray  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from trainingrun_runtime.progress.rank_reporter import TimesReporter  # noqa: E402

NOT_MEASURED = 100
"""PyTorch measures one of so many passes in any case."""


@ray.remote
class Listener:
    """Takes the reports."""

    def rank_times(self, rank: int, group: int, times: Any) -> None:
        """As the coordinator's."""


def work(rank: int, port: int, rounds: int, steps: int, step_s: float, results: Any) -> None:
    """One rank; both report to a Ray of their own."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    listener = Listener.remote()
    ray.get(listener.rank_times.remote(0, 0, None))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(100, 100))
    times: dict[bool, list[float]] = {False: [], True: []}
    calls: list[float] = []
    number, productive_s = 0, 0.0
    for _ in range(rounds):
        for measuring in (False, True):
            model._set_ddp_runtime_logging_sample_rate(NOT_MEASURED)
            reporter = TimesReporter(listener, rank, 1, [model]) if measuring else None
            for _ in range(steps):
                number += 1
                began = time.perf_counter()
                time.sleep(step_s)
                model(torch.ones(4, 100)).sum().backward()
                if reporter is not None:
                    before = time.perf_counter()
                    reporter.report(number, productive_s, None)
                    calls.append(time.perf_counter() - before)
                times[measuring].append(time.perf_counter() - began)
                productive_s += times[measuring][-1]
            dist.barrier()
    if rank == 0:
        results.put((times, calls))
    dist.barrier()
    ray.shutdown()


def main() -> None:
    """Print step times side by side, and the calls' own time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=100.0)
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
    without, measuring = (statistics.median(times[each]) for each in (False, True))
    share = sum(calls) / sum(times[True])
    print(f"step without it {1e3 * without:.3f} ms, with it {1e3 * measuring:.3f} ms")
    print(
        f"ratio {measuring / without:.5f}; the calls alone are a share of {share:.6f} of the steps"
    )


if __name__ == "__main__":
    main()
