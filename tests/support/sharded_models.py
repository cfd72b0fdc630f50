"""A small model and its optimizer, laid out over ranks that one process plays one after the other.

PyTorch's `fake` backend has ranks and meshes and sends nothing: laying out, saving and restoring
needs no more.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

try:
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache
except ImportError:  # of PyTorch 2.9
    _propagator = DTensor._op_dispatcher.sharding_propagator
    _clear_sharding_prop_cache = _propagator.propagate_op_sharding.cache.cache_clear


class Layout(NamedTuple):
    """How a tensor of two dimensions is spread over a mesh; one of a single dimension likewise."""

    mesh: tuple[int, ...]
    placements: tuple[Any, ...]
    vectors_on_first: bool = False
    """Whether what has one dimension is split over the mesh's first dimension alone."""

    @property
    def ranks(self) -> int:
        return math.prod(self.mesh)


def rows(ranks: int) -> Layout:
    """As FSDP2 does it."""
    return Layout((ranks,), (Shard(0),))


def columns(ranks: int) -> Layout:
    """As tensor parallelism does it for the second of two layers."""
    return Layout((ranks,), (Shard(1),))


HSDP = Layout((2, 2), (Replicate(), Shard(0)))
"""Two replicas of two parts."""
FSDP_TP = Layout((2, 2), (_StridedShard(0, split_factor=2), Shard(0)))
"""FSDP2 over what tensor parallelism has split along the same dimension."""
FSDP_TP_COLUMNS = Layout((2, 2), (Shard(0), Shard(1)))
"""FSDP2 over what tensor parallelism has split along another dimension."""
FSDP_SOME_TP = Layout((2, 2), (_StridedShard(0, split_factor=2), Shard(0)), vectors_on_first=True)
"""The same, where tensor parallelism leaves the biases whole: FSDP2 does not know of it then."""
WHOLE = Layout((1,), ())
"""One rank, without DTensors."""


@contextmanager
def one_rank(rank: int, ranks: int) -> Iterator[None]:
    """This process is one of so many ranks."""
    # DTensor keeps layouts by mesh, and the mesh of another rank is equal to this one's.
    _clear_sharding_prop_cache()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def laid_out(whole: torch.Tensor, layout: Layout) -> torch.Tensor:
    """This rank's DTensor of a whole tensor."""
    if not layout.placements:
        return whole.clone()
    names = ("data", "tensor")[: len(layout.mesh)]
    mesh = init_device_mesh("cpu", layout.mesh, mesh_dim_names=names)
    placements = [
        p if p.is_replicate() or p.dim < whole.ndim else Replicate() for p in layout.placements
    ]
    if layout.vectors_on_first and whole.ndim == 1:
        mesh, placements = mesh["data"], [Shard(0)]
    sizes, offsets = compute_local_shape_and_global_offset(whole.shape, mesh, placements)
    local = whole[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))].clone()
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def whole_model(*, trained: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The model and the optimizer that the sharded ones are equal to."""
    return a_model(WHOLE, trained=trained)


def a_model(
    layout: Layout, *, trained: bool, inputs: int = 6
) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A linear layer of 8 outputs, whose bias is a parameter of one dimension, and AdamW.

    Args:
        layout: of the parameters.
        trained: whether the weights are other than 0 and the optimizer has done a step.
        inputs: of the layer.
    """
    generator = torch.Generator().manual_seed(1)
    model = torch.nn.Linear(inputs, 8)
    gradients = {}
    for name, parameter in list(model.named_parameters()):
        value = torch.randn(parameter.shape, generator=generator)
        gradients[name] = torch.randn(parameter.shape, generator=generator)
        value = value if trained else torch.zeros_like(value)
        setattr(model, name, torch.nn.Parameter(laid_out(value, layout)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    if trained:
        for name, parameter in model.named_parameters():
            parameter.grad = laid_out(gradients[name], layout)
        optimizer.step()
    return model, optimizer


def tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Everything that a training changes, by name."""
    found = dict(model.state_dict())
    for index, values in optimizer.state_dict()["state"].items():
        found |= {f"{index}.{name}": value for name, value in values.items()}
    return found


def same_part(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether this rank's tensor is the part of the whole one that it should be."""
    if not isinstance(part, DTensor):
        return bool(torch.equal(part, whole))
    sizes, offsets = compute_local_shape_and_global_offset(
        whole.shape, part.device_mesh, part.placements
    )
    wanted = whole[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]
    return bool(torch.equal(part.to_local(), wanted))
