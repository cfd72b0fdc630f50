"""The IDX format of MNIST and its relatives, read from any storage URI.

A file is two zero bytes, the type of its numbers, the number of dimensions, each dimension as
4 bytes, and the numbers; big-endian throughout.
"""

import gzip
import math
import struct
import zlib

import numpy as np

from ..store.bucket import Bucket
from ..store.storage_errors import AbsentError

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def parse(content: bytes) -> np.ndarray:
    """The array in an IDX file.

    Raises:
        ValueError: It is not IDX, or shorter or longer than its header says.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        raise ValueError("this is not an IDX file: its first bytes are not an IDX header")
    kind = np.dtype(_TYPES[content[2]])
    dimensions = content[3]
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise ValueError("the IDX file ends within its header")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    wanted = header + math.prod(shape) * kind.itemsize
    if len(content) != wanted:
        raise ValueError(f"the IDX file has {len(content)} bytes instead of {wanted}")
    return np.frombuffer(content, kind, offset=header).reshape(shape).astype(kind.newbyteorder("="))


def load(bucket: Bucket, name: str) -> np.ndarray:
    """Read `name` or `name.gz`.

    Raises:
        ValueError: Neither is there, or what is there is not IDX.
        StorageError: The store did not answer.
    """
    for key in (name, f"{name}.gz"):
        try:
            content = b"".join(bucket.stream(key))
        except AbsentError:
            continue
        try:
            return parse(gzip.decompress(content) if key.endswith(".gz") else content)
        except (ValueError, OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{bucket.uri(key)} cannot be used: {error}") from None
    raise ValueError(f"{bucket.root} has neither {name} nor {name}.gz")
