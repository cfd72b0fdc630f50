"""What two ranks agree on, without Ray; prints JSON."""

import json
import os
import socket
import time
from typing import Any

import torch
import torch.multiprocessing

from trainingrun_runtime.known_errors.failure_causes import is_collective_error
from trainingrun_runtime.worker.step_consensus import (
    UNKNOWN,
    Place,
    RanksDisagree,
    StepConsensus,
    StepValues,
)

TIMEOUT_S = 3.0


def work(rank: int, port: int, results: Any, given_up: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    consensus, until_one_is_lost = StepConsensus(TIMEOUT_S), StepConsensus(60.0)
    found: dict[str, Any] = {}
    consensus.exchange(Place.STEP, StepValues(command=rank, step=1))
    found["one step late"] = consensus.exchange(
        Place.STEP, StepValues(stop=rank == 1, step=2)
    ).command
    result = consensus.under_way()
    found["stop"] = consensus.agreed().stop
    found["known to another thread"] = result() == consensus.agreed()
    for name, state in (("alike", 7), ("not alike", 7 + rank), ("unknown", UNKNOWN)):
        found[name] = consensus.agree(Place.STEP, StepValues(step=3, state=state)).alike
    consensus.barrier()
    found["gathered"] = consensus.gather([rank, 10 * rank])
    try:
        consensus.agree(Place.SAVE if rank else Place.STEP, StepValues(step=3 + rank))
    except RanksDisagree as error:
        found["apart"] = str(error)
    try:
        if rank == 0:
            consensus.gather([1, 2, 3] * 20)
        else:
            consensus.agree(Place.END, StepValues(step=0))
    except RanksDisagree as error:
        found["apart where states are compared"] = str(error)
    if rank == 0:
        began = time.monotonic()
        consensus.exchange(Place.END, StepValues(step=5))
        result = consensus.under_way()
        found["unknown while a rank is silent"] = result() is None
        try:
            consensus.agreed()
        except (RuntimeError, ConnectionError):
            found["waited"] = time.monotonic() - began
            found["unknown after it failed"] = result() is None
        given_up.set()
        began = time.monotonic()
        try:
            until_one_is_lost.barrier()
        except (RuntimeError, ConnectionError) as error:
            found["noticed after"] = time.monotonic() - began
            found["a loss"] = is_collective_error(error)
        results.put(found)
    else:
        given_up.wait()  # alive, and silent
        os._exit(0)


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("fork")
    results, given_up = context.Queue(), context.Event()
    ranks = torch.multiprocessing.start_processes(
        work, (port, results, given_up), 2, join=False, start_method="fork"
    )
    print(json.dumps(results.get(timeout=120)))
    while not ranks.join():
        pass


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
