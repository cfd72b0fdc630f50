"""A training function whose model is spread over the ranks in the ways that the example lacks.

Keys of its config: `kind`, a name in `KINDS`; `steps`; `step_seconds`.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from trainingrun_runtime import Session
from trainingrun_runtime.examples.repeatable import seed_everything, weights_sha256

PLAN = {"1": ColwiseParallel(), "3": RowwiseParallel()}
"""Leaves the first layer whole, and the bias of the last one."""


def _mixed_precision(model: nn.Sequential) -> int:
    """FSDP2 that computes in bfloat16 and keeps float32."""
    mesh = init_device_mesh("cpu", (2,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (model[1], model[3], model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    return int(mesh.get_local_rank())


def _tensor_parallel(model: nn.Sequential) -> int:
    """Tensor parallelism alone: both ranks take the same samples."""
    parallelize_module(model, init_device_mesh("cpu", (2,)), PLAN)
    return 0


def _both(model: nn.Sequential) -> int:
    """FSDP2 over what tensor parallelism has split."""
    mesh: DeviceMesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    parallelize_module(model, mesh["tensor"], PLAN)
    for module in (model[1], model[3], model):
        fully_shard(module, mesh=mesh["shard"])
    return int(mesh.get_local_rank("shard"))


KINDS: dict[str, Callable[[nn.Sequential], int]] = {
    "mixed precision": _mixed_precision,
    "tensor parallelism": _tensor_parallel,
    "both": _both,
}
"""How the model is spread; what that returns says which samples this rank takes."""


def train(config: dict[str, Any]) -> None:
    """Ends with the digest of the weights, and with the type that the model computes in.

    `digests` is 1 where all ranks hold the same of what they hold whole.
    """
    seed_everything(0)
    model = nn.Sequential(
        nn.LayerNorm(4), nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4), nn.Dropout(0.1)
    )
    part = KINDS[config["kind"]](model)
    # foreach=False: with tensor parallelism the parameters are on different meshes.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    session = Session(seed=0, model=model, optimizer=optimizer)
    for step in session.steps(config["steps"]):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(4 * step + part))
        outputs = model(inputs)
        loss = (outputs.float() - inputs.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.report(loss=loss.item())
        time.sleep(config.get("step_seconds", 0.0))
    mine = weights_sha256(model)
    of_all: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, mine)
    session.finish(computed_in=str(outputs.dtype), weights_sha256=mine, digests=len(set(of_all)))
