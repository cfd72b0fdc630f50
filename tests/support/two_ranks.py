"""`python two_ranks.py LINKED`: what two ranks agree on, without Ray; prints JSON.

LINKED: the largest number of ranks with connections of their own; 1: these use gloo.
"""

import json
import os
import socket
import sys
import time
from typing import Any

import torch
import torch.multiprocessing

from trainingrun_runtime.coordination.step_consensus import (
    Place,
    RanksDisagree,
    StepConsensus,
    StepValues,
)

TIMEOUT_S = 3.0


def work(rank: int, port: int, results: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    consensus = StepConsensus(TIMEOUT_S, int(sys.argv[1]))
    found: dict[str, Any] = {}
    consensus.exchange(Place.STEP, StepValues(command=rank, step=1))
    found["one step late"] = consensus.exchange(
        Place.STEP, StepValues(stop=rank == 1, step=2)
    ).command
    result = consensus.under_way()
    found["stop"] = consensus.settle().stop
    found["known to another thread"] = result() == consensus.settle()
    consensus.barrier()
    found["gathered"] = consensus.gather([rank, 10 * rank])
    try:
        consensus.agree(Place.SAVE if rank else Place.STEP, StepValues(step=3 + rank))
    except RanksDisagree as error:
        found["apart"] = str(error)
    if rank == 0:
        began = time.monotonic()
        consensus.exchange(Place.END, StepValues(step=5))
        result = consensus.under_way()
        found["unknown while a rank is silent"] = result() is None
        try:
            consensus.settle()
        except (RuntimeError, ConnectionError):
            found["waited"] = time.monotonic() - began
            found["unknown after it failed"] = result() is None
        results.put(found)
    else:
        results.get()  # alive, and silent, until rank 0 has given up


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    results = torch.multiprocessing.get_context("fork").Queue()
    answers = torch.multiprocessing.get_context("fork").Queue()
    ranks = torch.multiprocessing.start_processes(
        start, (port, results, answers), 2, join=False, start_method="fork"
    )
    print(json.dumps(results.get(timeout=120)))
    answers.put(None)
    while not ranks.join():
        pass


def start(rank: int, port: int, results: Any, answers: Any) -> None:
    work(rank, port, answers if rank else results)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
