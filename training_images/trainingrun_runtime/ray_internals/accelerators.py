"""How busy a worker's GPUs are, by the NVML binding that Ray brings.

Read for ray 2.58-2.60: `ray/_private/accelerators/nvidia_gpu.py`, which reads GPUs in the same way.
PyTorch's own `torch.cuda.utilization` needs a package that the image does not have, and begins to
use CUDA in a process whose training code may not have begun to.
"""

import logging
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import ray

log = logging.getLogger(__name__)


class GpuUtilization:
    """Reads it until that fails once, as for GPUs of other vendors and for a part of one (MIG).

    Args:
        gpus: their ids, which are indexes on the node or UUIDs; None: what Ray has assigned to
            this worker.
        nvml: the binding; None: Ray's.
    """

    def __init__(self, gpus: Sequence[str] | None = None, nvml: Any = None) -> None:
        self._gpus, self._nvml = gpus, nvml
        self._handles: list[Any] | None = None

    def read(self) -> float | None:
        """Share of the last moment in which they computed, from 0 to 1; None: not known.

        A kernel of NCCL that waits for other ranks counts, too.
        """
        try:
            if self._handles is None:
                self._handles = self._found()
            rates = [self._nvml.nvmlDeviceGetUtilizationRates(one).gpu for one in self._handles]
            return fmean(rates) / 100 if rates else None
        except Exception as error:  # what is measured is of no use to the training
            log.info("the use of the GPUs is not measured: %s", error)
            self._handles = []
            return None

    def _found(self) -> list[Any]:
        gpus = self._gpus
        if gpus is None:
            gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        if not gpus:
            return []
        if self._nvml is None:
            import ray._private.thirdparty.pynvml as nvml

            self._nvml = nvml
        self._nvml.nvmlInit()
        return [
            self._nvml.nvmlDeviceGetHandleByIndex(int(gpu))
            if gpu.isdecimal()
            else self._nvml.nvmlDeviceGetHandleByUUID(gpu.encode())
            for gpu in gpus
        ]
