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


def keep(bucket: Bucket, source: Source, message: str) -> list[str]:
    """Write to the bucket how an attempt has failed; returns the rank's last lines.

    Args:
        bucket: The folder of the run or of the trial.
        source: The rank that failed first.
        message: How it failed, in a sentence.
    """
    rank = source.rank or 0
    try:
        lines = _last_lines(bucket, source)
        found = Failed(
            group=source.group, rank=rank, message=message, time=time.time(), lines=lines
        )
        kept_output.write_failed(bucket, source.attempt, found)
    except StorageError as error:
        log.warning("the last lines of rank %d are not kept: %s", rank, error)
        return []
    return lines


def read(bucket: Bucket, source: Source) -> list[str]:
    """The rank's last lines, as far as they are in the bucket."""
    try:
        return _last_lines(bucket, source)
    except StorageError as error:
        log.warning("the last lines of rank %d are not read: %s", source.rank or 0, error)
        return []


def _last_lines(bucket: Bucket, source: Source) -> list[str]:
    deadline = time.monotonic() + _WAIT_S
    while True:
        found = kept_output.parts(bucket, source.attempt)
        own = [part for part in found if part.source == source]
        # Without any part nothing uploads them.
        if not found or any(part.last for part in own) or time.monotonic() > deadline:
            return [line.text for line in kept_output.read(bucket, own, tail=LINES)]
        time.sleep(_POLL_S)
