"""Ray's own TorchConfig, except that a broken process group is not torn down, and TPUs need none.

Read for ray 2.58-2.60: `ray/train/torch/config.py`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from ray.train.backend import Backend
from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend


@dataclass
class KeptProcessGroup(TorchConfig):
    """A TorchConfig whose process group ends with the processes of its ranks."""

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        """What forms the process group."""
        return _Backend


@dataclass
class NoProcessGroup(TorchConfig):
    """A TorchConfig for one worker with TPUs, and for ranks whose scripts connect themselves.

    Ray's own looks for PyTorch's device, which on TPUs needs a package that JAX has no use for. On
    GPUs that takes memory of the device, in a process that only waits for its script.
    """

    @property
    def train_func_context(self) -> Callable[[], AbstractContextManager[None]]:
        """What the training function is called in."""
        return nullcontext

    @property
    def backend_cls(self) -> type["_Nothing"]:
        """What does nothing."""
        return _Nothing


class _Nothing(Backend):
    """Connects no ranks; each sees the GPUs of all ranks of its pod, as with `_TorchBackend`."""

    share_cuda_visible_devices = True


class _Backend(_TorchBackend):
    def on_shutdown(self, worker_group: Any, backend_config: TorchConfig) -> None:
        """Leave the process group as it is: Ray kills the workers right afterwards.

        `destroy_process_group` needs every rank: when one is dead the others hang in it, and a
        restart waits 5 s for them.
        """
