"""Random numbers that follow from a seed and a place in the training, and from nothing before."""

import hashlib
import random

import numpy as np
import torch


def derive(seed: int, *place: int | str) -> int:
    """63 bits that follow from the seed and the place."""
    text = ":".join(str(part) for part in (seed, *place))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def begin(number: int) -> None:
    """Have PyTorch, NumPy and Python draw from here on what this number stands for."""
    # Not torch.manual_seed: before CUDA is used it takes the call stack apart, each time anew.
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        for generator in torch.cuda.default_generators:
            generator.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)
