"""Ray's own JaxConfig, except that each rank uses the GPUs that Ray has given to it.

Ray's own has every rank use the first GPUs of its node, so that the ranks of one pod share them,
and asks for CUDA on AMD's GPUs too. Ray documents JaxConfig under this private path.
Read for ray 2.58-2.60: `ray/train/v2/jax/config.py`.
"""

import os
from dataclasses import dataclass
from typing import Any

import ray
from ray.train._internal.utils import get_address_and_port
from ray.train.v2.jax.config import JaxConfig, _JaxBackend

__all__ = ["JAX_PLATFORMS_ENV", "JaxConfig", "OwnGpus", "join"]

JAX_PLATFORMS_ENV = "JAX_PLATFORMS"
_AMD_ENV = "HIP_VISIBLE_DEVICES"
"""By it Ray tells a process which of AMD's GPUs are its own."""


@dataclass
class OwnGpus(JaxConfig):
    """A JaxConfig for ranks with GPUs."""

    use_gpu: bool = True

    @property
    def backend_cls(self) -> type[_JaxBackend]:
        """What has the ranks join `jax.distributed`."""
        return _Backend


class _Backend(_JaxBackend):
    def on_start(self, worker_group: Any, backend_config: JaxConfig) -> None:
        """Return when all ranks have joined."""
        del backend_config
        host, port = worker_group.execute_single(0, get_address_and_port)
        ranks = len(worker_group)
        ray.get(
            [
                worker_group.execute_single_async(rank, join, f"{host}:{port}", ranks, rank)
                for rank in range(ranks)
            ]
        )


def join(address: str, ranks: int, rank: int) -> None:
    """Have this process join `jax.distributed` with its own GPUs.

    Args:
        address: of rank 0, with a port.
        ranks: how many join.
        rank: of this process.
    """
    # Where JAX may choose and the GPUs do not work, it trains on CPUs.
    if not os.environ.get(JAX_PLATFORMS_ENV):
        os.environ[JAX_PLATFORMS_ENV] = "rocm" if _AMD_ENV in os.environ else "cuda"
    import jax

    # Counted from 0: of the devices that the process sees.
    own = list(range(len(ray.get_gpu_ids())))
    jax.distributed.initialize(address, ranks, rank, local_device_ids=own)
