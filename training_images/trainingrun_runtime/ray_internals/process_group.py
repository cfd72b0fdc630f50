"""Forms PyTorch's process group, without loading PyTorch anywhere but in the workers.

Ray's own `TorchConfig` loads it in the driver and in Ray's controller too, one after the other:
3 s of each start, in which nothing else can be done. What the workers do is Ray's own code.
Read for ray 2.58-2.60: `ray/train/torch/config.py` and `.../callbacks/backend_setup.py`.
"""

import os
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from ray.train._internal.utils import get_address_and_port
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.util import TrainingFramework


@dataclass
class ProcessGroup(BackendConfig):
    """A process group of CPU or NVIDIA or AMD GPU workers."""

    backend: str
    """`gloo` or `nccl`."""
    timeout_s: int
    """Seconds after which a collective call fails."""

    @property
    def backend_cls(self) -> type:
        """What forms it."""
        return _Gathering

    @property
    def train_func_context(self) -> Any:
        """What surrounds the training function."""
        return _on_own_device

    @property
    def framework(self) -> TrainingFramework:
        """For Ray's own records."""
        return TrainingFramework.TORCH

    def to_dict(self) -> dict[str, Any]:
        """For Ray's own records."""
        return asdict(self)


class _Gathering(Backend):
    # Workers of one machine reach each other's GPUs directly, as with Ray's own backend.
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: ProcessGroup) -> None:
        address, port = worker_group.execute_single(0, get_address_and_port)
        worker_group.execute(_join, address, port, backend_config.backend, backend_config.timeout_s)

    def on_shutdown(self, worker_group: Any, backend_config: ProcessGroup) -> None:
        """Leave it as it is: Ray kills the workers right afterwards all the same.

        Taking the group apart first needs every rank: when one is dead the others hang in it, and
        a restart waits 5 s for them.
        """


def _join(address: str, port: int, backend: str, timeout_s: int) -> None:
    import ray.train
    from ray.train.torch import config

    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    config._set_torch_distributed_env_vars()
    context = ray.train.get_context()
    config._setup_torch_process_group(
        backend=backend,
        world_rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        init_method="env://",
        timeout_s=timeout_s,
    )


def _on_own_device() -> AbstractContextManager[None]:
    from ray.train.torch.config import TorchConfigContextManager

    manager: AbstractContextManager[None] = TorchConfigContextManager()
    return manager
