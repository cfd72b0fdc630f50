"""`stacks/<attempt>/<time>/rank-<k>.txt`: where each rank stood, in the bucket."""

import re
import time
from collections.abc import Mapping
from typing import NamedTuple

from .bucket import Bucket

FOLDER = "stacks"
"""Where they are, below the run's folder."""
MOST_KEPT = 50
"""Times that are kept, the newest."""
_KEY = re.compile(rf"{FOLDER}/(\d+)/(\d{{8}}T\d{{6}}Z)/rank-(\d+)\.txt")


class KeptStacks(NamedTuple):
    """The stacks of one moment."""

    attempt: int
    time: str
    """In UTC, as 20261126T221500Z."""
    ranks: dict[int, str]
    """Key of the text, by rank."""

    @property
    def folder(self) -> str:
        """Below the run's folder."""
        return folder_of(self.attempt, self.time)


def folder_of(attempt: int, at: str) -> str:
    """The folder of one moment, below the run's."""
    return f"{FOLDER}/{attempt}/{at}"


def moment(unix_time: float) -> str:
    """A time as the folders have it."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(unix_time))


def write(bucket: Bucket, folder: str, texts: Mapping[int, str]) -> None:
    """Write the stacks of one moment, and delete those of the oldest of too many.

    Raises:
        StorageError: The store did not answer.
    """
    for rank, text in texts.items():
        bucket.put(f"{folder}/rank-{rank}.txt", text.encode(errors="replace"))
    for old in kept(bucket)[:-MOST_KEPT]:
        bucket.delete(old.ranks.values())


def kept(bucket: Bucket) -> list[KeptStacks]:
    """All that there are, oldest first.

    Raises:
        StorageError: The store did not answer.
    """
    found: dict[tuple[str, int], dict[int, str]] = {}
    for entry in bucket.list(f"{FOLDER}/"):
        if match := _KEY.fullmatch(entry.key):
            attempt, at, rank = match.groups()
            found.setdefault((at, int(attempt)), {})[int(rank)] = entry.key
    return [
        KeptStacks(attempt, at, dict(sorted(ranks.items())))
        for (at, attempt), ranks in sorted(found.items())
    ]
