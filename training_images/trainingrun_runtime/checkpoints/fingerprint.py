"""Short digests of states: whether ranks hold the same, and whether something changed since."""

import hashlib
import io
from typing import Any

import torch

WHOLE = 65_536
"""Tensors of up to so many elements are read whole."""
SAMPLE = 4_096
"""Of larger ones so many elements, evenly spread: a step changes nearly all of them."""


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
    else:
        digest.update(f"{type(value).__name__} {value!r};".encode())


def _content(value: torch.Tensor) -> bytes:
    if value.layout is not torch.strided or value.is_quantized:
        file = io.BytesIO()
        torch.save(value, file)
        return file.getvalue()
    count = value.numel()
    flat = value.contiguous().reshape(-1)
    if count > WHOLE:
        flat = flat[:: count // SAMPLE]
    content: bytes = flat.cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return content
