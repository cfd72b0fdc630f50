"""A TorchConfig with which rank 1 dies once more while the worker group after its death connects.

It is for a function of `dies_in_a_step` with the same folder. Like a script's own, a subclass is
used as it is.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainingrun_runtime.ray_internals.torch_config import KeptProcessGroup

DIED = "died-connecting"
"""The file that it leaves."""


@dataclass
class DiesConnecting(KeptProcessGroup):
    """Args: folder: where rank 1 leaves a trace of its first death, and the second one is told."""

    folder: str = ""

    @property
    def backend_cls(self) -> type[Any]:
        """What forms the process group."""
        return _backend_of(super().backend_cls)


def _backend_of(of_the_runtime: type[Any]) -> type[Any]:
    class Backend(of_the_runtime):  # type: ignore[misc]
        def on_start(self, worker_group: Any, backend_config: DiesConnecting) -> None:
            folder = Path(backend_config.folder)
            if (folder / "rank-1").exists() and not (folder / DIED).exists():
                (folder / DIED).touch()
                worker_group.execute_single(1, _die_when_it_connects)
            super().on_start(worker_group, backend_config)

    return Backend


def _die_when_it_connects() -> None:
    def die(*_arguments: Any, **_settings: Any) -> None:
        time.sleep(1)  # rank 0 waits for it by then
        os.kill(os.getpid(), signal.SIGKILL)

    torch.distributed.init_process_group = die
