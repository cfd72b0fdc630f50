"""The random number generators of a rank's process: PyTorch's, NumPy's and Python's own."""

import math
import random
import struct
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_KIND = "MT19937"
_HEAD = struct.Struct("<IIIIqqdqd")
"""Bytes of PyTorch's state, NumPy's keys, Python's numbers and all GPUs' states; position,
has_gauss and gauss of NumPy; version and gauss of Python, which is NaN where there is none."""


class UnknownGenerator(Exception):
    """NumPy's global generator is not the usual one; a sentence says which it is."""


def current() -> dict[str, Any]:
    """The state of now, in a form that `torch.save` writes; tensors are not copied."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": [s.cpu() for s in torch.cuda.get_rng_state_all()]
        if torch.cuda.is_available()
        else [],
        "numpy": [str(kind), [int(k) for k in keys], int(position), int(has_gauss), float(gauss)],
        "python": random.getstate(),
    }


def put_back(state: Mapping[str, Any]) -> None:
    """Have all of them draw what they would have drawn after `current`.

    GPUs are left alone where there is another number of them.
    """
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    version, numbers, gauss_next = state["python"]
    random.setstate((version, tuple(numbers), gauss_next))


def packed() -> bytes:
    """The state of now as bytes, for each step: it takes less time than `current`.

    Raises:
        UnknownGenerator: NumPy's generator is another one.
    """
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    if kind != _KIND:
        raise UnknownGenerator(f"NumPy's global generator is {kind} instead of {_KIND}")
    version, numbers, gauss_next = random.getstate()
    of_torch: bytes = torch.get_rng_state().numpy().tobytes()
    of_numpy = np.asarray(keys, dtype="<u4").tobytes()
    of_python = array("Q", numbers).tobytes()
    # Before CUDA is used there is nothing to keep, and asking would begin to use it.
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    of_gpus = b"".join(state.cpu().numpy().tobytes() for state in gpus)
    head: bytes = _HEAD.pack(
        len(of_torch), len(of_numpy), len(of_python), len(gpus),
        position, has_gauss, gauss,
        version, math.nan if gauss_next is None else gauss_next,
    )  # fmt: skip
    return head + of_torch + of_numpy + of_python + of_gpus


def unpacked(content: bytes) -> dict[str, Any]:
    """What `current` had returned instead of `packed`."""
    of_torch, of_numpy, of_python, gpus, position, has_gauss, gauss, version, gauss_next = (
        _HEAD.unpack_from(content)
    )
    rest = memoryview(content)[_HEAD.size :]
    parts = []
    for size in (of_torch, of_numpy, of_python):
        parts.append(bytes(rest[:size]))
        rest = rest[size:]
    each = len(rest) // gpus if gpus else 0
    return {
        "torch": _bytes_of(parts[0]),
        "cuda": [_bytes_of(rest[n * each : (n + 1) * each]) for n in range(gpus)],
        "numpy": [
            _KIND,
            np.frombuffer(parts[1], "<u4").tolist(),
            position,
            has_gauss,
            gauss,
        ],
        "python": (
            version,
            tuple(array("Q", parts[2])),
            None if math.isnan(gauss_next) else gauss_next,
        ),
    }


def _bytes_of(content: bytes | memoryview) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
