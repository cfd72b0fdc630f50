"""Short digests of states: whether ranks hold the same, and whether something changed since.

All of a state is read. Ranks whose states differ in a single element save one each, and a digest of
some elements would take them for equal.
"""

import hashlib
import io
from typing import Any

import numpy as np
import torch

_WORDS = 127
"""64-bit words in a row; a row is digested to one word."""
_WEIGHTS = np.frombuffer(hashlib.shake_128(b"weights").digest(8 * _WORDS), np.uint64) | np.uint64(1)
"""Of the words of a row: so their order counts."""
_MIX = 29
"""Bits by which a word is moved before it is added to itself: no multiple of a number's size, so
that changes of two numbers in a word do not cancel out."""
_ROWS = 256
"""Rows that are read at once: they fit into a processor's cache."""
_ROWS_OF_DEVICE = 2**15
"""The same on an accelerator, which needs as much more memory: 33 MB, three times."""


def fingerprint(state: Any) -> int:
    """63 bits that say what an encoded state (`encoding.encode`) holds."""
    digest = hashlib.blake2b(digest_size=8)
    _add(digest, state)
    return int.from_bytes(digest.digest(), "big") >> 1


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
        digest.update(_content(value))
    elif isinstance(value, dict):
        digest.update(f"dict {len(value)};".encode())
        for key, item in value.items():
            digest.update(repr(key).encode())
            _add(digest, item)
    elif isinstance(value, list | tuple):
        digest.update(f"{type(value).__name__} {len(value)};".encode())
        for item in value:
            _add(digest, item)
    elif isinstance(value, bytes):
        digest.update(f"bytes {len(value)};".encode())
        digest.update(value)
    else:
        digest.update(f"{type(value).__name__} {value!r};".encode())


def _content(value: torch.Tensor) -> bytes:
    """Bytes that are others where the tensor has another content, and much fewer."""
    if value.layout is not torch.strided or value.is_quantized:
        file = io.BytesIO()
        torch.save(value, file)
        return file.getvalue()
    if value.is_cpu and value.nbytes < 8 * _WORDS:  # as `rest` below: there may be many of them
        return bytes(value.contiguous().view(-1).view(torch.uint8).numpy())
    flat = value.contiguous().reshape(-1)
    if flat.storage_offset() * flat.element_size() % 8:
        flat = flat.clone()  # words have to begin where a word can
    content = flat.view(torch.uint8)
    whole = len(content) // (8 * _WORDS) * (8 * _WORDS)
    rest = bytes(content[whole:].cpu().numpy())
    if not whole:
        return rest
    rows = content[:whole].view(torch.int64).reshape(-1, _WORDS)
    sums = _sums(rows.numpy()) if rows.device.type == "cpu" else sums_of_device(rows)
    return bytes(sums.tobytes() + rest)


def _sums(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The weighted sum of each row's words: some twenty times as fast as a digest of all of it.

    A word's upper bits are mixed into its lower ones first: the sum loses what overflows, and two
    changes of highest bits, such as signs, would cancel out.
    """
    words, by = rows.view(np.uint64), np.uint64(_MIX)
    sums = np.empty(len(words), np.uint64)
    mixed = np.empty((min(_ROWS, len(words)), _WORDS), np.uint64)
    for begin in range(0, len(words), _ROWS):
        some = words[begin : begin + _ROWS]
        into = mixed[: len(some)]
        np.right_shift(some, by, out=into)
        np.bitwise_xor(into, some, out=into)
        np.matmul(into, _WEIGHTS, out=sums[begin : begin + _ROWS])
    return sums


def sums_of_device(rows: torch.Tensor) -> np.ndarray[Any, Any]:
    """The same where the rows are: copying them to the host would take far longer."""
    weights = torch.from_numpy(_WEIGHTS.view(np.int64)).to(rows.device)
    sums = []
    for some in rows.split(_ROWS_OF_DEVICE):
        mixed = (some >> _MIX).bitwise_and_(2 ** (64 - _MIX) - 1).bitwise_xor_(some)
        sums.append(mixed.mul_(weights).sum(1))
    found: np.ndarray[Any, Any] = torch.cat(sums).cpu().numpy()
    return found
