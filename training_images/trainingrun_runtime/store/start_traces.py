"""`trace/<fencing token>-<group>.json`: where the time of each start of a worker group went.

The driver writes one document for each group, from the times that its processes tell. Nothing is
decided by it: it is for people. What the processes of a run wrote is bounded where it is read.
"""

import json
import math
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from trainingrun_protocol.wire import LATEST, Count, Name, Wire

from .bucket import Bucket

FOLDER = "trace"
"""Where they are, below the run's folder."""
MOST_RANKS = 64
"""Ranks of a document: of more, rank 0 and those that were ready last."""
MOST_READ = 50
"""Documents that are read, the newest."""
_LARGEST = 2**17
"""Bytes of a document; a larger one is not read. One of 64 ranks has a fifth of it."""
_KEY = re.compile(rf"{FOLDER}/(\d{{6,18}})-(\d{{4,18}})\.json", re.ASCII)

DRIVER_MARKS = ("process", "main", "lease", "connected", "fit")
"""Of a driver: its process began; Python and its imports were loaded; it had the run's lease; it
was connected to Ray; `fit()` was called."""
GROUP_MARKS = ("last_step", "lost", "saved", "asked", "created", "backend", "reported")
"""Of a worker group. Of the one before: its last step ended; its end was known; survivors had saved
that step. Then: Ray's controller began to start it; all processes were there; its backend was set
up, of PyTorch the process group; code without a session reported first."""
RANK_MARKS = (
    *("process", "loaded", "called", "imported", "ready"),
    *("session", "restored", "looped", "stepped"),
)
"""Of a rank: its process began; PyTorch and Ray Train were imported; Ray called it; the user's
function was imported; the checkpoint was agreed on and downloaded; the function made its session;
that had restored the objects; the loop over steps began; the first step ended."""
_MARKS = frozenset({*DRIVER_MARKS, *GROUP_MARKS, *RANK_MARKS})


def _known(found: Any) -> Any:
    if not isinstance(found, dict):
        return found
    return {
        name: float(time)
        for name in _MARKS & found.keys()
        if isinstance(time := found[name], (int, float))
        and not isinstance(time, bool)
        and math.isfinite(time)
        and 0 < time < LATEST
    }


Times = Annotated[dict[str, float], BeforeValidator(_known)]
"""Unix time in seconds by mark, by the clock of its process's machine; unknown ones are absent."""


class ProcessTimes(Wire):
    """The times of one process."""

    pod: Name = ""
    """Its pod; empty: of a local run."""
    pid: Count = 0
    """Its number in its container."""
    times: Times = Field(default_factory=dict)
    """See `DRIVER_MARKS`."""


class RankTimes(ProcessTimes):
    """The times of one rank, with `RANK_MARKS`."""

    rank: Count


class StartTrace(Wire):
    """The start of one worker group."""

    version: Literal[1] = 1
    """Of this format; a newer one is not read."""
    attempt: Count
    """Number of the attempt."""
    fencing_token: Count
    """Of the driver's lease."""
    group: Count
    """Number of the worker group, from 1."""
    world_size: Count = 0
    """Its ranks."""
    step: Count = 0
    """Step of the checkpoint that it began from."""
    times: Times = Field(default_factory=dict)
    """See `GROUP_MARKS`; `last_step` and `lost` are of a recovery alone."""
    driver: ProcessTimes | None = None
    """The driver, of the first group that it starts."""
    ranks: Annotated[
        list[RankTimes],
        BeforeValidator(lambda found: found[:MOST_RANKS] if isinstance(found, list) else found),
    ] = Field(default_factory=list)
    """By rank."""

    @property
    def key(self) -> str:
        """Where it is in the run's folder."""
        return f"{FOLDER}/{self.fencing_token:06d}-{self.group:04d}.json"


def write(bucket: Bucket, document: StartTrace) -> None:
    """Write a document, over its former version too.

    Raises:
        StorageError: The store did not answer.
    """
    bucket.put(document.key, json.dumps(document.to_dict(), allow_nan=False).encode())


def read(bucket: Bucket) -> list[StartTrace]:
    """The newest documents, the first one first; what cannot be read is left out.

    Raises:
        StorageError: The store did not answer.
    """
    keys = {
        (int(match[1]), int(match[2])): entry.key
        for entry in bucket.list(FOLDER)
        if entry.size <= _LARGEST and (match := _KEY.fullmatch(entry.key))
    }
    found = []
    for _, key in sorted(keys.items())[-MOST_READ:]:
        try:
            found.append(StartTrace.model_validate_json(bucket.get(key) or b""))
        except ValidationError:
            continue
    return found
