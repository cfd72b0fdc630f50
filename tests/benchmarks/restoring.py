"""The training whose restore `bench.py` measures; both are functions for `training.function`."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import obstore
import ray.train
import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from fsspec.implementations.arrow import ArrowFSWrapper
from pyarrow.fs import S3FileSystem
from torch import nn
from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard

from trainingrun_runtime import Session
from trainingrun_runtime.store import manifest
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.manifest import Manifest
from trainingrun_runtime.worker import restore

STEPS = 3
RANGE, READERS = 8 * 1024 * 1024, 8

_agree = restore.agree
_searched: list[float] = []


def _noted(*arguments: Any) -> restore.Chosen:
    _searched.append(time.time())
    return _agree(*arguments)


restore.agree = _noted


def whole(config: dict[str, Any]) -> None:
    """Every rank has all 200 MB, the same."""
    entered = time.time()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 16))
    for number in range(50):
        network.register_buffer(f"ballast-{number}", torch.rand(1_000_000))
    _train(config, nn.parallel.DistributedDataParallel(network, broadcast_buffers=False), entered)


def sharded(config: dict[str, Any]) -> None:
    """2 GB over all ranks: AdamW's two tensors for each parameter, and the parameter."""
    entered = time.time()
    network = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(10)))
    for layer in (*network, network):
        fully_shard(layer)
    _train(config, network, entered)


def _train(config: dict[str, Any], model: nn.Module, entered: float) -> None:
    torch.set_num_threads(1)
    rank = ray.train.get_context().get_world_rank()
    width = 16 if next(model.parameters()).shape[-1] == 16 else 4096
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    built = time.time()
    _forget_peak()
    session = Session(model=model, optimizer=optimizer)
    document = {
        "searched": _searched[0],
        "built": built - entered,
        "ready": time.time(),
        "peak": _memory("VmHWM"),
    }
    if session.step:
        document |= _plain_read(config["bucket"], rank)
    else:
        for step in session.steps(STEPS):
            optimizer.zero_grad()
            model(torch.rand(1, width)).square().mean().backward()
            optimizer.step()
            if step == STEPS - 1:
                document["base"] = _memory("VmRSS")
                _forget_peak()
                session.save()
            document["stepped"] = time.time()
        document["saved"] = time.time()
        bucket = Bucket.open(*config["bucket"])
        while not manifest.committed(bucket):
            time.sleep(0.2)
        document["save_peak"] = _memory("VmHWM")
        if isinstance(model, FSDPModule):
            document |= _other_saves(config["bucket"], rank, model, optimizer)
    Path(f"{config['times']}-{rank}").write_text(json.dumps(document))


class _Arrow(ArrowFSWrapper):
    """The bucket by fsspec, through pyarrow's client."""

    protocol = "bench"

    def __init__(self, endpoint: str, region: str, **_: Any) -> None:
        super().__init__(S3FileSystem(endpoint_override=endpoint, region=region, scheme="http"))

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("bench://")


def _other_saves(
    place: list[str], rank: int, model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, list[float]]:
    """Seconds in which all ranks upload the files that they have saved, and do nothing else; and
    in which `torch.distributed.checkpoint` saves the same state to the same bucket.
    """
    bucket = Bucket.open(*place)
    newest = manifest.committed(bucket)[-1]
    name = f"rank-{rank}.safetensors"
    content = bytes(obstore.get(bucket.store, f"{newest.path}/{name}").bytes())
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    fsspec.register_implementation("bench", _Arrow, clobber=True)
    options = {"endpoint": place[1].removeprefix("http://"), "region": place[2]}

    def plain(number: int) -> None:
        key = f"plain/{number}-{rank}"
        with bucket.writing(key, len(content)) as append:
            for start in range(0, len(content), RANGE):
                append(memoryview(content)[start : start + RANGE])

    def distributed(number: int) -> None:
        folder = f"bench://{bucket.path}/distributed/{number}"
        writer = FsspecWriter(folder, overwrite=True, **options)
        torch.distributed.checkpoint.async_save(state, storage_writer=writer).result()

    found: dict[str, list[float]] = {"plain_save": [], "distributed_save": []}
    for number in range(3):
        for what, save in (("plain_save", plain), ("distributed_save", distributed)):
            dist.barrier()
            began = time.time()
            save(number)
            dist.barrier()
            found[what].append(time.time() - began)
    return found


def _plain_read(place: list[str], rank: int) -> dict[str, Any]:
    """Seconds in which all ranks read the files that they have restored, and do nothing else."""
    bucket = Bucket.open(*place)
    newest = manifest.committed(bucket)[-1]
    names = _own_files(newest, rank)
    ranges = [
        (f"{newest.path}/{name}", start, min(start + RANGE, newest.files[name].size))
        for name in names
        for start in range(0, newest.files[name].size, RANGE)
    ]

    def read(part: tuple[str, int, int]) -> int:
        key, start, end = part
        return len(obstore.get_range(bucket.store, key, start=start, end=end))

    seconds = []
    for _ in range(3):
        dist.barrier()
        began = time.time()
        with ThreadPoolExecutor(READERS) as pool:
            count = sum(pool.map(read, ranges))
        dist.barrier()
        seconds.append(time.time() - began)
    return {"read": sorted(seconds)[1], "bytes": count, "total": _total(newest)}


def _own_files(newest: Manifest, rank: int) -> list[str]:
    own = (f"rank-{rank}.safetensors", f"random-{rank}.pt")
    return [name for name in newest.files if name in own or "state" in name]


def _total(newest: Manifest) -> int:
    return sum(file.size for file in newest.files.values())


def _memory(name: str) -> float:
    """Megabytes of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1e3
    return 0.0


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
