"""Host memory that the tensors of a checkpoint are copied into, used again for the next one.

New memory costs more than the copy: the kernel clears each page when it is first written to. So the
memory of the first checkpoint is made beside training, before that checkpoint is due.

What a GPU holds is copied into pinned memory, which it writes to directly; all such copies are
under way at once: 39 GB/s on an H200, and 1.4 GB/s into memory that is not pinned
(`tests/benchmarks/gpu_copies.py`; `make test-gpu` tests it).
"""

import mmap
import os
import threading
from collections.abc import Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from .background import begin_behind_training

SMALL = 2**16
"""Bytes of a tensor up to which it gets new memory each time."""
PIECE = 2**23
"""Bytes that a thread copies at once."""
THREADS = 4
"""Threads that copy, at most; one alone does not use what the memory can do."""
ROUNDING = 9 / 8
"""Bytes of pinned memory for a byte of a tensor, at most: PyTorch rounds up to a power of two, and
keeps what it has pinned. Other tensors of a GPU get memory as those of the CPU do."""
AT_ONCE = 2**22
"""Bytes of new memory that are made at once: a checkpoint waits some milliseconds at most, and
NumPy releases Python's lock meanwhile."""


Pair = tuple[torch.Tensor, torch.Tensor]
"""The place of a copy, and its source."""


class Staging:
    """Copies of tensors in host memory; those of one checkpoint are overwritten by the next one's.

    So the memory of one checkpoint stays in use. What is no longer needed is given back when the
    next checkpoint is copied; PyTorch keeps what is pinned, for other tensors of such sizes.
    """

    def __init__(self) -> None:
        self._free: dict[Hashable, list[torch.Tensor]] = {}
        self._used: dict[Hashable, list[torch.Tensor]] = {}
        self._copies: list[Pair] = []
        self._making: threading.Thread | None = None
        self._wanted = threading.Event()

    def begin(self) -> None:
        """Begin a checkpoint; nobody reads the copies of the former one any more."""
        if self._making is not None:
            self._wanted.set()
            self._making.join()  # else it would write into a copy
            self._making = None
        self._free, self._used, self._copies = self._used, {}, []

    def placed(self, value: torch.Tensor) -> torch.Tensor:
        """The place of a tensor's copy; `copy` fills it."""
        if value.layout is not torch.strided or value.is_quantized or value.nbytes <= SMALL:
            return value.to("cpu", copy=True)
        pinned = is_pinned_for(value)
        kind = value.dtype, value.shape, value.stride(), pinned
        same = self._free.get(kind)
        with torch.inference_mode(False):  # else no other mode could write to it
            target = same.pop() if same else new_place(value, pinned)
        self._used.setdefault(kind, []).append(target)
        self._copies.append((target, value))
        return target

    def copy(self) -> None:
        """Copy all tensors that got a place."""
        self._free = {}
        copies, self._copies = self._copies, []
        # Ray tells PyTorch to use one thread. A copy from a GPU belongs to this thread's stream.
        threads = min(THREADS, os.cpu_count() or 1) if torch.get_num_threads() == 1 else 1
        shared: list[Pair] = []
        for target, source in copies:
            if threads > 1 and source.is_cpu and source.is_contiguous():
                shared += _pieces(target, source)
            else:
                target.copy_(source, non_blocking=is_pinned_for(source))
        if shared:
            with ThreadPoolExecutor(threads, "checkpoint-copy") as pool:
                list(pool.map(_copy, shared))
        for gpu in {source.device for _, source in copies if is_pinned_for(source)}:
            torch.cuda.current_stream(gpu).synchronize()

    def make_memory(self) -> None:
        """Instead of `copy`: have the kernel clear the memory of these places, beside training.

        It ends when that is done, or when the next checkpoint begins.
        """
        places = [target.as_strided((target.numel(),), (1,)) for target, _ in self._copies]
        self._free, self._copies = {}, []
        # NumPy, since PyTorch must not be called in a thread that outlives Python's own end.
        bytes_of = [place.view(torch.uint8).numpy() for place in places]
        self._making = begin_behind_training(lambda: _touch(bytes_of, self._wanted))


def is_pinned_for(source: torch.Tensor) -> bool:
    """Whether the copy of this tensor is in pinned memory."""
    # Of other layouts, and of conjugates, PyTorch's copy ends with work on the CPU.
    plain = source.is_contiguous() and not source.is_conj() and not source.is_neg()
    if not source.is_cuda or not plain:
        return False
    rounded = 1 << (source.nbytes - 1).bit_length()
    return bool(rounded <= ROUNDING * source.nbytes)


def new_place(source: torch.Tensor, pinned: bool) -> torch.Tensor:
    """Memory for the copy of a tensor; not pinned where that fails, as it is scarcer."""
    if pinned:
        with suppress(RuntimeError):
            return torch.empty_like(source, device="cpu", pin_memory=True)
    return torch.empty_like(source, device="cpu")


def _pieces(target: torch.Tensor, source: torch.Tensor) -> list[Pair]:
    count = PIECE // source.element_size()
    return list(zip(target.view(-1).split(count), source.view(-1).split(count), strict=True))


def _copy(piece: Pair) -> None:
    target, source = piece
    target.copy_(source)


def _touch(places: Iterable[np.ndarray[Any, Any]], wanted: threading.Event) -> None:
    """Write one byte to each page, until `wanted` is set."""
    for content in places:
        for start in range(0, len(content), AT_ONCE):
            if wanted.is_set():
                return
            content[start : start + AT_ONCE : mmap.PAGESIZE] = 0
