"""A process group for training that does not use PyTorch: the ranks of a session agree by it."""

import socket
from datetime import timedelta

import ray
import ray.train
import torch.distributed as dist
from ray.train.collective import broadcast_from_rank_zero

from ..worker.worker import this_worker


def ensure() -> tuple[int, int]:
    """Form a group of all ranks, unless there is one; every rank calls it.

    Returns:
        This rank, and how many there are.
    """
    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    if dist.is_initialized() or size == 1:
        return rank, size
    timeout = timedelta(seconds=this_worker().timeout_s)
    address: tuple[str, int] | None = None
    store: dist.TCPStore | None = None
    if rank == 0:
        host = ray.util.get_node_ip_address()
        store = dist.TCPStore(host, 0, size, True, timeout, wait_for_workers=False)
        address = (host, store.port)
    host, port = broadcast_from_rank_zero(address)
    store = store or dist.TCPStore(host, port, size, False, timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    return rank, size


def free_address() -> str:
    """Host and port of this node at which nothing listens now."""
    host = ray.util.get_node_ip_address()
    with socket.socket() as free:
        free.bind((host, 0))
        return f"{host}:{free.getsockname()[1]}"
