"""How long a rank waits in backward passes for the gradients of the other ranks."""

import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger(__name__)

READ_EVERY_S = 2.0
"""Seconds between two readings; one takes about 0.1 ms."""
_EVERY_PASS = 5
"""Of so many passes on CPUs one is measured. With CUDA, where it makes the process wait for the
device, PyTorch's own 100 are kept."""
_WARMING_UP = 10
"""Passes that are left out: PyTorch builds its buckets, and caches fill."""
_LEAST_STEPS = 20
"""Steps from which on the passes of a step are counted."""
_PASSES = 20
"""Measured passes that count."""


@dataclass
class _Model:
    parallel: Any
    first: tuple[int, int] | None = None
    """(passes, steps) at the first reading."""
    last: tuple[int, int] | None = None
    waits_s: deque[float] = field(default_factory=lambda: deque(maxlen=_PASSES))


class GradientWaits:
    """Reads what DistributedDataParallel measures: from the end of a rank's own backward pass
    until the gradients of all ranks are there.

    The rank that the others wait for waits least. What other libraries exchange, such as FSDP2's
    parameters, is not measured.

    Args:
        objects: those of the session.
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        self._models = [_Model(o) for o in objects if isinstance(o, DistributedDataParallel)]
        self._next = 0.0
        for model in self._models:
            if all(parameter.device.type == "cpu" for parameter in model.parallel.parameters()):
                model.parallel._set_ddp_runtime_logging_sample_rate(_EVERY_PASS)

    def read(self, step: int) -> None:
        """Read the last measured pass, unless one was read a moment ago."""
        if not self._models or (now := time.monotonic()) < self._next:
            return
        self._next = now + READ_EVERY_S
        try:
            for model in self._models:
                _read(model, step)
        except Exception as error:  # what is measured is of no use to the training
            log.warning("waits for gradients are not measured: %s", error)
            self._models = []

    def per_step_s(self) -> float | None:
        """Seconds of a step in which this rank waits; None: not known, or not yet."""
        waits = [_per_step_s(model) for model in self._models]
        known = [wait for wait in waits if wait is not None]
        return sum(known) if known and len(known) == len(waits) else None


def _read(model: _Model, step: int) -> None:
    measured = model.parallel._get_ddp_logging_data()
    passes = measured.get("iteration", 0)
    if passes <= _WARMING_UP or (model.last is not None and passes <= model.last[0]):
        return
    model.last = (passes, step)
    model.first = model.first or model.last
    waited_ns = measured["backward_comm_time"] - measured["backward_compute_comm_overlap_time"]
    model.waits_s.append(max(waited_ns, 0) / 1e9)


def _per_step_s(model: _Model) -> float | None:
    if model.first is None or model.last is None:
        return None
    passes, steps = (last - first for last, first in zip(model.last, model.first, strict=True))
    return fmean(model.waits_s) * passes / steps if steps >= _LEAST_STEPS else None
