"""Ranks that share matrices by tensor parallelism draw the same random numbers; no others do."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from support.sharded_models import one_rank
from trainingrun_runtime.random_numbers import first_of_group

PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def a_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.LayerNorm(8))


def split(model: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    """As the mesh's dimensions are named."""
    names = mesh.mesh_dim_names or ()
    if "tensor" in names:
        parallelize_module(model, mesh["tensor"], copy.copy(PLAN))
    data = tuple(name for name in ("replicate", "shard") if name in names)
    if data:
        for module in (model[0], model[2], model):
            fully_shard(module, mesh=mesh[data])
    return model


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        pytest.param({"shard": 4}, [0, 1, 2, 3], id="FSDP"),
        pytest.param({"replicate": 2, "shard": 2}, [0, 1, 2, 3], id="HSDP"),
        pytest.param({"tensor": 4}, [0, 0, 0, 0], id="TP"),
        pytest.param({"shard": 2, "tensor": 2}, [0, 0, 2, 2], id="FSDP and TP"),
        pytest.param({"shard": 1, "tensor": 2}, [0, 0], id="FSDP of one, and TP"),
        pytest.param({"shard": 2, "tensor": 1}, [0, 1], id="FSDP, and TP of one"),
        pytest.param(
            {"replicate": 2, "shard": 2, "tensor": 2}, [0, 0, 2, 2, 4, 4, 6, 6], id="HSDP and TP"
        ),
    ],
)
def test_the_ranks_of_a_group_go_by_its_first(mesh: dict[str, int], expected: list[int]) -> None:
    found = []
    for rank in range(len(expected)):
        with one_rank(rank, len(expected)):
            laid = init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
            model = split(a_model(), laid)
            found.append(first_of_group([model, torch.optim.SGD(model.parameters())], rank))
    assert found == expected


def test_tensor_parallelism_on_some_ranks_leaves_the_others_alone() -> None:
    found = []
    for rank in range(4):
        with one_rank(rank, 4):
            pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "tensor"))
            model = a_model()
            if rank >= 2:
                split(model, pairs["tensor"])
            found.append(first_of_group([model], rank))
    assert found == [0, 1, 2, 2]


def test_a_model_without_dtensors_goes_by_its_rank() -> None:
    assert first_of_group([a_model(), object()], 3) == 3
