"""`settings/<fencing token>.json`: what each driver of a run has begun with, in the bucket.

Two runs, or two attempts, are told apart by it. It is for people: no run decides anything by it.
"""

import json

from pydantic import Field, ValidationError

from trainingrun_protocol.wire import Count, Name, Sentence, Wire

from . import lease
from .bucket import Bucket
from .lease import Lease

FOLDER = "settings"
"""Where the documents are, below the run's folder."""
_LARGEST = 2**20
"""Bytes of a document; a larger one is not read."""


class RunSettings(Wire):
    """What one driver has begun with, without secrets."""

    attempt: Count
    """Number of the attempt."""
    function: Sentence | None = None
    """`module:function`; none: it is a script."""
    script: Sentence | None = None
    """Path of the script; none: it is a function."""
    script_args: list[Sentence] = Field(default_factory=list)
    """Its arguments, at most 100."""
    config: dict[Name, Sentence] = Field(default_factory=dict)
    """Values as text, the names of nested ones joined by dots; at most 200, of 500 characters."""
    config_left_out: Count = 0
    """Further values of the config."""
    workers: Count
    """World size; with `minimum_workers` the largest one."""
    minimum_workers: Count | None = None
    """The smallest world size; none: it does not change."""
    resources_per_worker: dict[Name, float] = Field(default_factory=dict)
    """Ray resources, such as {"CPU": 4, "GPU": 1}."""
    image: Sentence | None = None
    """Image of the pods; none: the run is on one machine."""
    versions: dict[Name, Name] = Field(default_factory=dict)
    """Of Python and of what is installed, by name."""


def write(held: Lease, settings: RunSettings) -> None:
    """Write a driver's document; its name has the driver's fencing token.

    Raises:
        StorageError: The store did not answer.
    """
    key = lease.document_key(FOLDER, held.fencing_token)
    held.bucket.put(key, json.dumps(settings.to_dict(), allow_nan=False).encode())


def newest(bucket: Bucket) -> RunSettings | None:
    """Of the newest driver that has written any; none: there is none, or it cannot be read.

    Raises:
        StorageError: The store did not answer.
    """
    tokens = lease.fencing_tokens(bucket, FOLDER)
    content = bucket.get(lease.document_key(FOLDER, max(tokens))) if tokens else None
    if content is None or len(content) > _LARGEST:
        return None
    try:
        return RunSettings.model_validate_json(content)
    except ValidationError:
        return None
