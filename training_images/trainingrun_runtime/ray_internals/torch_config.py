"""Ray's own TorchConfig, except that a broken process group is not torn down, and TPUs need none.

Read for ray 2.58-2.60: `ray/train/torch/config.py`.
"""

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
    """A TorchConfig for one worker with TPUs.

    Ray's own looks for PyTorch's device there, which needs a package that JAX has no use for.
    """

    @property
    def backend_cls(self) -> type["_Nothing"]:
        """What does nothing."""
        return _Nothing


class _Nothing(Backend):
    """Connects no ranks."""


class _Backend(_TorchBackend):
    def on_shutdown(self, worker_group: Any, backend_config: TorchConfig) -> None:
        """Leave the process group as it is: Ray kills the workers right afterwards.

        `destroy_process_group` needs every rank: when one is dead the others hang in it, and a
        restart waits 5 s for them.
        """
