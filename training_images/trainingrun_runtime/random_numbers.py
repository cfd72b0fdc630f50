"""Random numbers that follow from a seed and a place in the training, and from nothing before."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import SupportsInt

import numpy as np
import torch


def derive(seed: int, *place: int | str) -> int:
    """63 bits that follow from the seed and the place."""
    text = ":".join(map(str, (seed, *place)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class StepRandom:
    """Has a training draw its random numbers from a seed and the place where they are drawn.

    In a step each rank draws its own, as for dropout. Outside of the steps all ranks draw the same:
    a split of the data, or an order of the samples, of which each of them takes a part.

    Args:
        seed: None: the random numbers are left as they are.
        rank: of this process, or one that stands for all that draw the same in a step.
    """

    def __init__(self, seed: SupportsInt | None, rank: int) -> None:
        self._seed = None if seed is None else int(seed)
        self._rank = rank

    @property
    def seeded(self) -> bool:
        """Whether there is a seed."""
        return self._seed is not None

    def begin(self, where: str, step: int, epoch: int) -> None:
        """From here on the random numbers follow from this place, outside of the steps."""
        if self._seed is not None:
            begin(derive(self._seed, where, step, epoch))

    def begin_step(self, step: int, epoch: int) -> None:
        """From here on they follow from this step and the rank."""
        if self._seed is not None:
            begin(derive(self._seed, "step", step, epoch, self._rank))


def begin(number: int) -> None:
    """Have PyTorch, NumPy and Python draw from here on what this number stands for."""
    # Not torch.manual_seed: before CUDA is used it takes the call stack apart, each time anew.
    if torch.cuda.is_initialized():
        for generator in torch.cuda.default_generators:
            generator.manual_seed(number)
    _begin_on_cpu(number)


@contextmanager
def borrowed(number: int) -> Iterator[None]:
    """Draw on the CPU what this number stands for, and what was to be drawn before afterwards."""
    former = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        _begin_on_cpu(number)
        yield
    finally:
        torch.set_rng_state(former[0])
        np.random.set_state(former[1])
        random.setstate(former[2])


def _begin_on_cpu(number: int) -> None:
    torch.default_generator.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)
