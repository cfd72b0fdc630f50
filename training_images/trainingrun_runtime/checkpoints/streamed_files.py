"""Files of a checkpoint, from memory into the bucket: digested while they are uploaded.

No copy is on a disk. The pages of a file that is new each time take more CPU time from training
than all the rest of a save.
"""

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch

from ..store.bucket import Bucket
from ..store.manifest import FileDigest, digest_file
from ..store.storage_retry import StorageRetry
from .encoding import tensors
from .tensor_files import TensorFile

_PIECE = 2**18
"""Bytes that are digested and copied at once: between two pieces a thread that trains may have to
wait for Python's lock."""


def upload(
    bucket: Bucket,
    folder: str,
    files: Mapping[str, Any],
    rank: int,
    retry: StorageRetry,
) -> None:
    """Upload a rank's files of a checkpoint, and then their digests.

    Args:
        bucket: The run's folder.
        folder: Key of the checkpoint's folder.
        files: A `TensorFile`, or what `torch.save` writes, by name; nobody changes it meanwhile.
        rank: Of this process.
        retry: Repeats a file that the store does not take.
    """
    found = {}
    for name, content in files.items():
        found[name] = retry(partial(write, bucket, f"{folder}/{name}", content))
    digests = {name: asdict(digest) for name, digest in found.items()}
    retry(lambda: bucket.put(f"{folder}/{digest_file(rank)}", json.dumps(digests).encode()))


def write(bucket: Bucket, key: str, content: Any) -> FileDigest:
    """Write one object.

    Args:
        bucket: The run's folder.
        key: Of the object.
        content: A `TensorFile`, or what `torch.save` writes.

    Returns:
        Its size and digest; of what was meant, not of what the store has.

    Raises:
        StorageError: the store has not taken all of it, and there is no such object.
    """
    if isinstance(content, TensorFile):
        size = content.nbytes
    else:
        # A sparse tensor says no size, and that of a whole one may be beyond any memory.
        size = sum(part.nbytes for part in tensors(content) if part.layout is torch.strided)
    with bucket.writing(key, size) as append:
        file = _DigestedFile(append)
        if isinstance(content, TensorFile):
            # Together: most tensors of a model's head, and of an optimizer's steps, are small.
            with io.BufferedWriter(file, _PIECE) as together:
                for piece in content.content():
                    together.write(piece)
        else:
            _save(content, file)
    return file.digest()


class _DigestedFile(io.RawIOBase):
    """A file that is written from its begin to its end."""

    def __init__(self, append: Callable[[memoryview], object]) -> None:
        self._append = append
        self._sha256, self._size = hashlib.sha256(), 0
        self.error: Exception | None = None
        """Why a `write` has failed; what is written later is left out."""

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        whole = memoryview(content).cast("B")
        for start in range(0, len(whole), _PIECE) if self.error is None else ():
            # A copy: who calls has other content in this memory soon, and the store's client
            # sends it later.
            piece = _copied(whole[start : start + _PIECE])
            self._sha256.update(piece)
            try:
                self._append(piece)
            except Exception as error:
                self.error = error
                raise
        self._size += len(whole)
        return len(whole)

    def digest(self) -> FileDigest:
        """Of all that was written."""
        return FileDigest(self._size, self._sha256.hexdigest())


def _copied(content: memoryview) -> memoryview:
    """A copy that is made without Python's lock, unlike that of `bytes`.

    This thread gives way to others. Where it did so in the middle of a copy that holds the lock,
    the thread that trains would wait until both have run.
    """
    return np.frombuffer(content, np.uint8).copy().data


def _save(content: Any, file: _DigestedFile) -> None:
    try:
        # Together: a tensor's headers and names are a few bytes each.
        with io.BufferedWriter(file, _PIECE) as together:
            torch.save(content, together)
    except Exception as error:
        # PyTorch ends the file all the same, and raises that this fails, too.
        raise (file.error or error) from None
