"""`progress/<fencing token>.json`: where each driver of a run stood last, in the bucket.

A driver writes it while it trains and at its end, so that what a lost head had done, and what was
lost under it, is known after its pod is gone. Nothing is decided by it: it is for people.
"""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pydantic import ValidationError

from trainingrun_protocol.progress import Progress

from . import lease
from .bucket import Bucket

log = logging.getLogger(__name__)

FOLDER = "progress"
"""Where the documents are, below the run's folder."""
MOST_DRIVERS = 200
"""Drivers that are read, the newest."""

_LARGEST = 2**20
"""Bytes of a document; a larger one is not read."""
_AT_ONCE = 16


@dataclass(frozen=True)
class Driver:
    """One driver of a run: that of an attempt, or a further one after its head was lost."""

    fencing_token: int
    """Of its lease."""
    attempt: int
    """The attempt that it belongs to; 0: its lease cannot be read."""
    began: float
    """Unix time at which it took the lease, in seconds; 0: its lease cannot be read."""
    seen: float
    """Unix time at which it last wrote its lease or its document."""
    progress: Progress | None
    """Its last document; none: it has left none."""


def write(bucket: Bucket, progress: Progress) -> None:
    """Write a driver's document, over its former one.

    Raises:
        StorageError: The store did not answer.
    """
    content = json.dumps(progress.to_dict(), allow_nan=False).encode()
    bucket.put(lease.document_key(FOLDER, progress.fencing_token), content)


def drivers(bucket: Bucket) -> list[Driver]:
    """The drivers of a run, the first one first; at most the newest 200.

    Raises:
        StorageError: The store did not answer.
    """
    tokens = sorted(lease.fencing_tokens(bucket, lease.FOLDER))[-MOST_DRIVERS:]
    sizes = {entry.key: entry.size for entry in bucket.list(FOLDER)}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda token: _driver(bucket, token, sizes), tokens))


def _driver(bucket: Bucket, fencing_token: int, sizes: dict[str, int]) -> Driver:
    held = lease.document(bucket, fencing_token)
    key = lease.document_key(FOLDER, fencing_token)
    progress = _read(bucket, key) if sizes.get(key, _LARGEST) < _LARGEST else None
    times = [lease.time_of(held, "renewed"), progress.time if progress is not None else 0.0]
    return Driver(
        fencing_token,
        progress.attempt if progress is not None else lease.attempt_of(held),
        lease.time_of(held, "taken"),
        max(times),
        progress,
    )


def _read(bucket: Bucket, key: str) -> Progress | None:
    content = bucket.get(key)
    try:
        return Progress.model_validate_json(content) if content is not None else None
    except ValidationError:
        log.warning("%s is not a progress document", bucket.uri(key))
        return None
