"""The bytes of a checkpoint's file that is on this machine, read without a copy."""

import io
import mmap
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:  # which `trainingrun_runtime.results` does without
    import torch

LARGEST_HEADER = 100_000_000
"""Bytes of the header of a file of tensors; the format's readers refuse a larger one."""
LENGTH = struct.Struct("<Q")
"""What such a file begins with: the bytes of its header."""


class FileContent:
    """All bytes of a file, in memory or mapped; a change is seen by nobody else.

    Args:
        memory: of this process; what is changed in it changes no file.
        size: bytes of the file.
    """

    def __init__(self, memory: mmap.mmap, size: int) -> None:
        self._memory, self.size = memory, size

    @classmethod
    def of_file(cls, path: Path) -> "FileContent":
        """Of a file on this machine."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # An empty one cannot be mapped.
            of = file.fileno() if size else -1
            return cls(mmap.mmap(of, max(size, 1), access=mmap.ACCESS_COPY), size)

    def header(self) -> bytes:
        """The header of a file of tensors.

        Raises:
            ValueError: it has none.
        """
        length = header_length(self._memory[: min(self.size, 8)])
        if length > self.size:
            raise ValueError("it ends within its header")
        return self._memory[:length]

    def bytes_of(self, begin: int, end: int) -> "torch.Tensor":
        """Some of the bytes, not copied, as a tensor that keeps all of them.

        Raises:
            ValueError: there are not so many.
        """
        import torch

        if not 0 <= begin <= end <= self.size:
            raise ValueError(f"it has {self.size} bytes, and none from {begin} to {end}")
        if begin == end:  # of which PyTorch makes no tensor
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(self._memory, dtype=torch.uint8, count=end - begin, offset=begin)

    def open(self) -> BinaryIO:
        """A file with a copy of the bytes."""
        return io.BytesIO(self._memory[: self.size])

    def release(self, begin: int, end: int) -> None:
        """Give back the memory of bytes that are read no more."""
        page = mmap.PAGESIZE
        begin, end = -(-begin // page) * page, end // page * page
        if begin < end:
            self._memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def header_length(first: bytes) -> int:
    """Bytes of a header with its length, from the file's first bytes.

    Raises:
        ValueError: they are fewer than 8, or say more than a header may have.
    """
    if len(first) < LENGTH.size:
        raise ValueError("it ends within its header")
    (length,) = LENGTH.unpack_from(first)
    if length > LARGEST_HEADER:
        raise ValueError(f"its header has {length} bytes, more than it may have")
    return int(LENGTH.size + length)
