"""What the rank has printed last that ended an attempt: kept with the attempt, and reported."""

import logging
import time

from ..store import kept_output
from ..store.bucket import Bucket
from ..store.kept_output import Failed, Source
from ..store.storage_errors import StorageError

log = logging.getLogger(__name__)

LINES = 50
"""Lines that are kept."""
_WAIT_S = 5.0
"""For the node of the rank to upload them; it may be lost."""
_POLL_S = 0.2
_CLOCKS_S = 10.0
"""By which the clock of the rank's node may be behind the head's; a head is replaced in more."""


def keep(bucket: Bucket, source: Source, message: str, since: float) -> list[str]:
    """Write to the bucket how an attempt has failed; returns the rank's last lines.

    Args:
        bucket: The folder of the run or of the trial.
        source: The rank that failed first.
        message: How it failed, in a sentence.
        since: Of `read`.
    """
    rank = source.rank or 0
    try:
        lines = _last_lines(bucket, source, since)
        found = Failed(
            group=source.group, rank=rank, message=message, time=time.time(), lines=lines
        )
        kept_output.write_failed(bucket, source.attempt, found)
    except StorageError as error:
        log.warning("the last lines of rank %d are not kept: %s", rank, error)
        return []
    return lines


def read(bucket: Bucket, source: Source, since: float) -> list[str]:
    """The rank's last lines, as far as they are in the bucket.

    Args:
        bucket: The folder of the run or of the trial.
        source: The rank.
        since: Unix time in seconds before the first worker group of this driver: a driver whose
            head was lost had groups of the same numbers, in the same attempt.
    """
    try:
        return _last_lines(bucket, source, since)
    except StorageError as error:
        log.warning("the last lines of rank %d are not read: %s", source.rank or 0, error)
        return []


def _last_lines(bucket: Bucket, source: Source, since: float) -> list[str]:
    deadline = time.monotonic() + _WAIT_S
    while True:
        found = kept_output.parts(bucket, source.attempt)
        own = [part for part in found if part.source == source and part.time >= since - _CLOCKS_S]
        # Without any part nothing uploads them.
        if not found or any(part.last for part in own) or time.monotonic() > deadline:
            return [line.text for line in kept_output.read(bucket, own, tail=LINES)]
        time.sleep(_POLL_S)
