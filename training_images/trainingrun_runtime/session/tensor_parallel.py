"""Which ranks share matrices by tensor parallelism, and so have to draw the same random numbers."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..checkpoints.sharded_state import is_sharded


def first_of_group(objects: Iterable[Any], rank: int) -> int:
    """The lowest of the ranks that share this rank's matrices; the rank itself without such.

    These ranks compute the same of the same samples, but for their parts of the matrices. With
    dropout of their own, what each of them holds whole, such as a bias, would differ from then on.

    Args:
        objects: of the session; models among them are looked at.
        rank: of this process.
    """
    groups = (_group(thing) for thing in objects if isinstance(thing, torch.nn.Module))
    return min((min(group) for group in groups if group), default=rank)


def _group(model: torch.nn.Module) -> frozenset[int]:
    """The ranks over which a parameter is split, other than by FSDP2; with this one, if any."""
    of_fsdp = set(_ranks_of_fsdp(model))
    found: frozenset[int] = frozenset()
    for parameter in model.parameters():
        if not is_sharded(parameter) or parameter.device_mesh.get_coordinate() is None:
            continue
        mesh = parameter.device_mesh
        split = {
            dim
            for dim, placement in enumerate(parameter.placements)
            if not placement.is_replicate()
            and not any(_along(mesh, {dim}) <= ranks for ranks in of_fsdp)
        }
        if split:
            found |= _along(mesh, split)
    return found


def _ranks_of_fsdp(model: torch.nn.Module) -> Iterator[frozenset[int]]:
    """For each dimension of FSDP2's meshes the ranks along it, this one among them.

    Read for torch 2.13: `torch/distributed/fsdp/_fully_shard/_fsdp_state.py`.
    """
    for module in model.modules():
        if not hasattr(module, "_get_fsdp_state"):
            continue
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:  # an older PyTorch has one for each module, at most
            groups = [state._fsdp_param_group] if state._fsdp_param_group else []
        for group in groups:
            mesh = group.mesh_info.mesh
            yield from (_along(mesh, {dim}) for dim in range(mesh.ndim))


def _along(mesh: Any, dims: set[int]) -> frozenset[int]:
    """The ranks whose place on the mesh differs from this one's in these dimensions alone."""
    place = tuple(
        slice(None) if dim in dims else at for dim, at in enumerate(mesh.get_coordinate())
    )
    return frozenset(int(rank) for rank in mesh.mesh[place].flatten())
