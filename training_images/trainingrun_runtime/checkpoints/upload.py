"""The upload of a checkpoint's files from a rank's memory to the bucket, beside training.

They are digested meanwhile, and no copy is on a disk: the pages of a file that is new each time
take more CPU time from training than all the rest of a save.
"""

import io
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from blake3 import blake3
from ray.train import Checkpoint

from ..ray_internals import training
from ..ray_internals.filesystem import SessionCheckpoint
from ..store.bucket import Bucket
from ..store.manifest import FileDigest, digest_file
from ..store.storage_retry import StorageRetry
from . import snapshot
from .background import behind_training
from .encoding import tensors
from .tensor_files import TensorFile

T = TypeVar("T")

_PIECE = 2**18
"""Bytes that are copied at once: between two pieces a thread that trains may have to wait for
Python's lock. What is longer is sent from where it is."""
_LONGEST = 2**23
"""Bytes that are digested and sent at once."""


class CheckpointUpload:
    """Uploads one checkpoint's files from memory, in Ray's upload thread.

    It waits for a store that does not answer, and keeps the files until they are uploaded. Training
    goes on meanwhile and makes no other checkpoint: one copy waits at most.

    Args:
        step: steps done when it was made.
        files: bytes, or what `torch.save` writes, by name; nobody changes it meanwhile.
        bucket: the run's folder.
        rank: of this process.
        retry: repeats what the store does not answer.
        before_end: called once the files are uploaded, before Ray is told so; does not raise.
    """

    def __init__(
        self,
        step: int,
        files: dict[str, Any],
        bucket: Bucket,
        rank: int,
        retry: StorageRetry,
        before_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._step, self._files, self._bucket, self._rank = step, files, bucket, rank
        self._retry, self._before_end = _TimedRetry(retry), before_end
        # Ray asks for one; what is uploaded is not in it.
        self._empty = tempfile.TemporaryDirectory(prefix="checkpoint-", ignore_cleanup_errors=True)
        self.folder = self._empty.name
        self.name = ""
        """Of the checkpoint's folder; known once it is uploaded."""
        self._seconds: float | None = None
        self._began = time.monotonic()
        self._finished = threading.Event()

    def __call__(self, checkpoint: Checkpoint, name: str) -> Checkpoint:
        """Upload it under that name; Ray's upload thread calls this."""
        self.name = name
        try:
            uploaded = training.stored(name)
            key = self._bucket.key_of(uploaded.path)
            behind_training(lambda: snapshot.require_readable(self._files))
            behind_training(lambda: upload(self._bucket, key, self._files, self._rank, self._retry))
            self._files = {}
            self._empty.cleanup()
            self._before_end()
        finally:
            # An outage that is over says nothing of how long the next one will take.
            self._seconds = time.monotonic() - self._began - self._retry.failed_s
            self._finished.set()
        return SessionCheckpoint(uploaded.path, uploaded.filesystem, self._step)

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._finished.is_set()

    @property
    def seconds_so_far(self) -> float:
        """Since the state was copied; once it has ended, without the tries that failed."""
        return time.monotonic() - self._began if self._seconds is None else self._seconds

    def wait(self) -> None:
        """Return once the upload has ended, well or not."""
        self._finished.wait()


class _TimedRetry:
    """A retry that notes for how long the store has taken nothing."""

    def __init__(self, retry: StorageRetry) -> None:
        self._retry = retry
        self.failed_s = 0.0
        """Seconds of tries that failed, and between them."""

    def __call__(self, request: Callable[[], T]) -> T:
        began = last = time.monotonic()

        def attempt() -> T:
            nonlocal last
            last = time.monotonic()
            return request()

        try:
            return self._retry(attempt)
        finally:
            self.failed_s += last - began


def upload(
    bucket: Bucket,
    folder: str,
    files: Mapping[str, Any],
    rank: int,
    retry: StorageRetry | _TimedRetry,
) -> None:
    """Upload a rank's files of a checkpoint, and then their digests.

    Args:
        bucket: The run's folder.
        folder: Key of the checkpoint's folder.
        files: A `TensorFile`, or what `torch.save` writes, by name; nobody changes it meanwhile.
        rank: Of this process.
        retry: Repeats a file that the store does not take.
    """
    digests = {
        name: asdict(retry(partial(write, bucket, f"{folder}/{name}", content)))
        for name, content in files.items()
    }
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
            for piece in _together(content.content()):
                file.append(piece)
        else:
            _save(content, file)
    return file.digest()


def _together(content: Iterable[Any]) -> Iterator[memoryview]:
    """The same bytes in pieces of at most `_LONGEST` bytes; short ones are put together.

    Most tensors of a model's head, and of an optimizer's steps, are small.
    """
    short, size = list[memoryview](), 0
    for each in content:
        whole = memoryview(each)
        for start in range(0, len(whole), _LONGEST):
            piece = whole[start : start + _LONGEST]
            if short and size + len(piece) > _PIECE:
                yield memoryview(b"".join(short))
                short, size = [], 0
            if len(piece) > _PIECE:
                yield piece
            else:
                short.append(piece)
                size += len(piece)
    if short:
        yield memoryview(b"".join(short))


class _DigestedFile(io.RawIOBase):
    """A file that is written from its begin to its end."""

    def __init__(self, append: Callable[[memoryview], object]) -> None:
        self._append = append
        self._digest, self._size = blake3(), 0
        self.error: Exception | None = None
        """Why a `write` has failed; what is written later is left out."""

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        whole = memoryview(content).cast("B")
        for start in range(0, len(whole), _PIECE) if self.error is None else ():
            # A copy: who calls has other content in this memory soon, and the store's client
            # sends it later.
            try:
                self.append(_copied(whole[start : start + _PIECE]))
            except Exception as error:
                self.error = error
                raise
        return len(whole)

    def append(self, piece: memoryview) -> None:
        """Write what nobody changes until all is sent."""
        self._digest.update(piece)
        self._append(piece)
        self._size += len(piece)

    def digest(self) -> FileDigest:
        """Of all that was written."""
        return FileDigest(self._size, self._digest.hexdigest())


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
