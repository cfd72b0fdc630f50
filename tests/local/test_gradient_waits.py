"""What DistributedDataParallel measures of the wait for other ranks, between two real ranks."""

import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.ports import free_port
from trainingrun_runtime.progress import gradient_waits
from trainingrun_runtime.progress.gradient_waits import GradientWaits

pytestmark = pytest.mark.slow

STEPS, SLOW_S = 50, 0.1


def train(rank: int, port: int, results: Any) -> None:
    """One rank; rank 1 takes longer before each backward pass."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    gradient_waits.READ_EVERY_S = 0.0
    results.put((rank, [measured(rank, accumulate) for accumulate in (False, True)]))
    dist.barrier()


def measured(rank: int, accumulate: bool) -> tuple[float | None, float]:
    """Seconds of a step in which the rank has waited, and of the whole step."""
    model = DistributedDataParallel(nn.Linear(4, 1))
    waits = GradientWaits([model, object()])
    assert waits.per_step_s() is None, "nothing is measured yet"
    began = time.monotonic()
    for step in range(1, STEPS + 1):
        time.sleep(SLOW_S * rank)
        if accumulate:
            with model.no_sync():
                model(torch.ones(1, 4)).sum().backward()
        model(torch.ones(1, 4)).sum().backward()
        waits.read(step)
    return waits.per_step_s(), (time.monotonic() - began) / STEPS


def test_the_rank_that_is_not_slow_waits_for_the_other_one() -> None:
    results = torch.multiprocessing.get_context("spawn").Queue()
    ranks = torch.multiprocessing.start_processes(train, (free_port(), results), 2, join=False)
    found = dict([results.get(timeout=120), results.get(timeout=120)])
    while not ranks.join():
        pass
    for (fast_s, step_s), (slow_s, _) in zip(found[0], found[1], strict=True):
        assert 0.6 * SLOW_S < fast_s <= 1.5 * step_s
        assert slow_s < fast_s / 2


def test_what_is_not_in_parallel_is_not_measured() -> None:
    waits = GradientWaits([nn.Linear(4, 1)])
    waits.read(100)
    assert waits.per_step_s() is None
