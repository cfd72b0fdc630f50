"""A rank's tensors as one safetensors file, which PyTorch's and others' tools read as it is.

The file is 8 bytes with the length of a JSON header, the header, and the tensors' bytes. The header
says each tensor's shape and type, and where this part of it lies in the whole tensor, under the
name that `torch.distributed.checkpoint.HuggingFaceStorageReader` reads. So no index is written
beside it, no rank needs to know what another one writes, and no file is a pickle.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from safetensors import safe_open

from trainingrun_protocol.wire import encodable

from .encoding import NotSavable
from .file_content import LARGEST_HEADER, LENGTH, FileContent

STATE_TENSORS, RANK_TENSORS = "state", "rank"
"""Files of what all ranks hold alike, and of what one rank holds."""
_NAME = re.compile(rf"({STATE_TENSORS}|{RANK_TENSORS})-(0|[1-9][0-9]{{0,6}})\.safetensors")
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
        return LENGTH.pack(len(text)) + text


class TensorsOfFile:
    """The tensors of one file, not copied.

    Args:
        content: of the file.

    Raises:
        Exception: it has no header, or one that the format's own reader refuses.
    """

    def __init__(self, content: FileContent) -> None:
        self._content = content
        header = content.header()
        with tempfile.NamedTemporaryFile(prefix="header-") as file:
            file.write(header)
            file.truncate(content.size)  # with a hole where the tensors are
            safe_open(file.name, framework="pt")
        self._begin, self._entries = len(header), json.loads(header[8:])

    def described(self, key: str) -> tuple[torch.dtype | None, tuple[int, ...]]:
        """Type and shape of a tensor; None: a type that PyTorch does not have.

        Raises:
            KeyError: there is none of this name.
        """
        entry = self._entries[key]
        return TYPES.get(entry["dtype"]), tuple(entry["shape"])

    def tensor(self, key: str) -> torch.Tensor:
        """A tensor, which keeps the file.

        Raises:
            KeyError: there is none of this name, or it was released.
        """
        dtype, shape = self.described(key)
        begin, end = self._place(key)
        return self._content.bytes_of(begin, end).view(dtype).view(shape)

    def release(self, key: str) -> None:
        """Give back the memory of a tensor, which cannot be read any more."""
        self._content.release(*self._place(key))
        del self._entries[key]

    def _place(self, key: str) -> tuple[int, int]:
        begin, end = self._entries[key]["data_offsets"]
        return self._begin + begin, self._begin + end


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
