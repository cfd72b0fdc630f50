"""A rank's tensors as one safetensors file, which PyTorch's and others' tools read as it is.

The file is 8 bytes with the length of a JSON header, the header, and the tensors' bytes. The header
says each tensor's shape and type, and where this part of it lies in the whole tensor, under the
name that `torch.distributed.checkpoint.HuggingFaceStorageReader` reads. So no index is written
beside it, no rank needs to know what another one writes, and no file is a pickle.
"""

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from trainingrun_protocol.wire import encodable

from .encoding import NotSavable

STATE_TENSORS, RANK_TENSORS = "state", "rank"
"""Files of what all ranks hold alike, and of what one rank holds."""
LARGEST_HEADER = 100_000_000
"""Bytes of a header; the readers refuse a larger one."""
_NAME = re.compile(rf"({STATE_TENSORS}|{RANK_TENSORS})-(0|[1-9][0-9]{{0,6}})\.safetensors")
_LENGTH = struct.Struct("<Q")
_OFFSETS, _OFFSET = "DCP_SHARDING_INFO", "saved_offsets"
"""The names in a header that say where a part lies, as PyTorch writes and reads them."""
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TYPES = {name: dtype for dtype, name in _NAMES.items()}
"""The types that a file can hold, by their names in its header."""


class Part(NamedTuple):
    """A part of a tensor, or all of it."""

    local: torch.Tensor
    offsets: tuple[int, ...]
    """Where it begins in the whole tensor."""
    shape: tuple[int, ...]
    """Of the whole tensor."""


class TensorFile(NamedTuple):
    """What one file holds; nobody changes it while it is written."""

    parts: Mapping[str, Part]
    """By name, such as `model.layers.0.weight`."""

    @property
    def nbytes(self) -> int:
        """Of the tensors."""
        return sum(part.local.nbytes for part in self.parts.values())

    def require_header(self) -> None:
        """Make sure that the readers take a header of so many names.

        Raises:
            NotSavable: they do not.
        """
        self._header(self._order())

    def content(self) -> Iterator[Any]:
        """The file's bytes, in order; the tensors are not copied."""
        names = self._order()
        yield self._header(names)
        for name in names:
            tensor = self.parts[name].local.contiguous()
            if tensor.numel():
                yield tensor.view(-1).view(torch.uint8).numpy()

    def _order(self) -> list[str]:
        # The widest types first: then each tensor begins at a multiple of its elements' size.
        return sorted(self.parts, key=lambda name: (-self.parts[name].local.element_size(), name))

    def _header(self, names: list[str]) -> bytes:
        require_names(names)
        offsets = {name: {_OFFSET: list(self.parts[name].offsets)} for name in names}
        header: dict[str, Any] = {
            "__metadata__": {"format": "pt", _OFFSETS: json.dumps(offsets)},
        }
        begin = 0
        for name in names:
            tensor = self.parts[name].local
            end = begin + tensor.nbytes
            header[name] = {
                "dtype": _NAMES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [begin, end],
            }
            begin = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        if len(text) > LARGEST_HEADER:
            raise NotSavable(
                f"a rank would save {len(names)} tensors, whose names alone take {len(text)} "
                f"bytes, and a file holds {LARGEST_HEADER} bytes of names; save fewer tensors, "
                "such as one for each layer"
            )
        return _LENGTH.pack(len(text)) + text


def require_names(names: Iterable[str]) -> None:
    """Make sure that readers of the format take these names of tensors.

    Raises:
        NotSavable: one is no UTF-8, as the name of a file may be.
    """
    for name in names:
        if not name.isascii() and encodable(name) != name:
            raise NotSavable(
                f"{encodable(name)} is the name of a tensor and no UTF-8, so nothing could read "
                "it from a checkpoint; let state_dict() give it another name"
            )


def whole(tensor: torch.Tensor) -> Part:
    """All of a tensor as its only part."""
    return Part(tensor, (0,) * tensor.dim(), tuple(tensor.shape))


def fits(tensor: torch.Tensor) -> bool:
    """Whether such a file can hold the tensor: it is dense, and of a type that the format has."""
    return tensor.layout is torch.strided and tensor.dtype in _NAMES


def file_name(kind: str, rank: int) -> str:
    """Name of the file of a rank's tensors.

    Args:
        kind: `STATE_TENSORS` or `RANK_TENSORS`.
        rank: which wrote it.
    """
    return f"{kind}-{rank}.safetensors"


def is_tensor_file(name: str) -> bool:
    """Whether a session has written a file of this name; others in the folder are left alone."""
    return _NAME.fullmatch(name) is not None


def header_length(first: bytes) -> int:
    """Bytes of a header with its length, from the file's first bytes.

    Raises:
        ValueError: they are fewer than 8, or say more than a header may have.
    """
    if len(first) < _LENGTH.size:
        raise ValueError("it ends within its header")
    (length,) = _LENGTH.unpack_from(first)
    if length > LARGEST_HEADER:
        raise ValueError(f"its header has {length} bytes, more than it may have")
    return int(_LENGTH.size + length)
