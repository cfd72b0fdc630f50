"""A training of three real ranks, and the same with two of them and with one, without Ray.

Prints JSON: by the number of ranks, its steps and how far its weights are from those of three.
"""

import json
import os
import socket
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainingrun_runtime import ResumableDataLoader
from trainingrun_runtime.data import kept_batch
from trainingrun_runtime.data.kept_batch import KeptBatch
from trainingrun_runtime.session import microbatches

WORKERS, EPOCHS = 3, 2


class Waves:
    """Samples of 64 bits, so that the order of an addition is all that may differ."""

    def __len__(self) -> int:
        return 322

    def __getitem__(self, index: int) -> torch.Tensor:
        return (torch.arange(4, dtype=torch.float64) * index / len(self)).sin()


def work(rank: int, ranks: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    kept_batch.keep(KeptBatch(WORKERS, ranks))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader, steps = ResumableDataLoader(Waves(), 4, seed=3), 0
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        drawn = loader.microbatches()
        for _ in range(len(loader)):
            for batch, weight in microbatches.of_step(drawn, [model], lambda place: None):
                wanted = batch.sum(dim=1, keepdim=True).cos()
                ((model(batch) - wanted).square().mean() * weight).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
        assert next(drawn, None) is None
    if rank == 0:
        weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
        torch.save((steps, weights), Path(folder) / str(ranks))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (3, 2, 1):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            torch.multiprocessing.start_processes(
                work, (ranks, port, folder), ranks, start_method="fork"
            )
        _, whole = torch.load(Path(folder) / str(WORKERS))
        for ranks in (3, 2, 1):
            steps, weights = torch.load(Path(folder) / str(ranks))
            found[ranks] = {"steps": steps, "apart": (weights - whole).abs().max().item()}
    print(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
