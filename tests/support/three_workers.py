"""`python three_workers.py BEGIN END FILE`: digits' model on three real workers, without Ray.

Trains from step BEGIN to END, starting from FILE unless BEGIN is 0, and prints the weights' digest.
"""

import os
import socket
import sys

import torch
import torch.multiprocessing
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from trainingrun_runtime.examples.digits import data, network
from trainingrun_runtime.examples.repeatable import (
    REPEATABLE,
    batch,
    seed_everything,
    weights_sha256,
)

WORKERS = 3


def work(rank: int, port: int, begin: int, end: int, file: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=WORKERS)
    seed_everything(0)
    images, _, labels, _ = data(0)
    model = DistributedDataParallel(network(), **REPEATABLE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if begin:
        weights, moments = torch.load(file)
        model.load_state_dict(weights)
        optimizer.load_state_dict(moments)
    for step in range(begin, end):
        mine = batch(step, len(images), 32, rank, WORKERS, 0)
        optimizer.zero_grad()
        cross_entropy(model(images[mine]), labels[mine]).backward()
        optimizer.step()
    if rank == 0:
        torch.save((model.state_dict(), optimizer.state_dict()), file)
        print(weights_sha256(model), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    begin, end, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.multiprocessing.start_processes(
        work, (port, begin, end, file), WORKERS, start_method="fork"
    )
