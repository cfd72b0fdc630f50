"""The random number generators of a rank's process: PyTorch's, NumPy's and Python's own."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


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
