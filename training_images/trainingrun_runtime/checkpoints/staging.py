"""Host memory that the tensors of a checkpoint are copied into, used again for the next one.

New memory costs more than the copy: the kernel clears each page when it is first written to.

What a GPU holds is copied into pinned memory, which it writes to directly; all such copies are
under way at once. The tests run without a GPU, so this path has not been run: what is tested is
which tensors take it, and that memory which cannot be pinned is used as it is.
"""

import os
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch

SMALL = 2**16
"""Bytes of a tensor up to which it gets new memory each time."""
PIECE = 2**23
"""Bytes that a thread copies at once."""
THREADS = 4
"""Threads that copy, at most; one alone does not use what the memory can do."""
ROUNDING = 9 / 8
"""Bytes of pinned memory for a byte of a tensor, at most: PyTorch rounds up to a power of two, and
keeps what it has pinned. Other tensors of a GPU get memory as those of the CPU do."""

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

    def begin(self) -> None:
        """Begin a checkpoint; nobody reads the copies of the former one any more."""
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
