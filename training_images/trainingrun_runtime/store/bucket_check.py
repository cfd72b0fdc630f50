"""Whether a store can do what a run needs, tried before anything rests on it."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from .bucket import Bucket
from .storage_errors import (
    DeniedError,
    EndpointError,
    LackingError,
    RefusedError,
    StorageError,
    TakenError,
    UnusableError,
    no_store,
)

_PROBE = f".probe-{uuid.uuid4().hex}"
"""One name for all tries of a process: what an outage left is removed by the next."""
_PARTS = f"{_PROBE}-parts"
_RACES = [f"{_PROBE}-race-{number}" for number in range(3)]
_CONTENDERS = 6
"""Per race; a store that lets two of them win does so in most races."""
_NEEDED = "so it cannot keep two drivers apart; use a store that supports conditional writes"


def check(bucket: Bucket) -> None:
    """Try everything that a run will do: write, read, create only once, list, delete.

    Raises:
        StorageError: One sentence that says what does not work and what to change.
    """
    try:
        bucket.put(_PROBE, b"probe")
    except DeniedError as error:
        if error.mounted:
            raise
        _list(bucket)  # a bucket that cannot even be listed raises its own sentence
        raise DeniedError(
            f"{bucket.root} can be read but not written; allow the run's credentials to "
            "write and delete objects there"
        ) from None
    try:
        kept = bucket.get(_PROBE)
    except DeniedError as error:
        if error.mounted:
            raise
        raise DeniedError(
            f"objects in {bucket.root} can be written but not read; allow the run's credentials "
            "to read objects there"
        ) from None
    if kept != b"probe":
        raise no_store(bucket.at())
    try:
        try:
            _check_conditional(bucket)
            _check_parts(bucket)
            _list(bucket)
        except EndpointError as error:  # it keeps objects, so it is a store
            raise UnusableError(
                f"the store of {bucket.at()} gives an answer that cannot be read ({error}); use "
                "another store or a newer version of this one"
            ) from None
    except StorageError:
        with suppress(StorageError):
            _delete(bucket)
        raise
    _delete(bucket)
    with suppress(StorageError):
        bucket.clean()


def _list(bucket: Bucket) -> None:
    try:
        bucket.list("manifests")
    except DeniedError as error:
        raise DeniedError(
            f"{error}: objects cannot be listed; allow the run's credentials to list the bucket"
        ) from None


def _delete(bucket: Bucket) -> None:
    try:
        bucket.delete([_PROBE, _PARTS, *_RACES])
    except DeniedError:
        raise DeniedError(
            f"objects in {bucket.root} can be written but not deleted; allow the run's "
            "credentials to delete objects there"
        ) from None


def _check_conditional(bucket: Bucket) -> None:
    """Try to create an object that is there, and one that several create at once."""
    try:
        if bucket.create(_PROBE, b"second"):
            raise LackingError(f"the store of {bucket.at()} ignores {bucket.condition}, {_NEEDED}")
    except LackingError:
        raise
    except (UnusableError, RefusedError):  # it has just taken the same without the condition
        raise LackingError(
            f"the store of {bucket.at()} refuses {bucket.condition}, {_NEEDED}"
        ) from None
    _delete(bucket)  # also what an outage left
    names = sorted(_RACES * _CONTENDERS)
    with ThreadPoolExecutor(len(names)) as pool:
        won = list(pool.map(lambda each: _wins(bucket, each[1], each[0]), enumerate(names)))
    winners = [name for name, first in zip(names, won, strict=True) if first]
    if len(set(winners)) < len(winners):
        raise LackingError(
            f"the store of {bucket.at()} lets several create one object at once "
            f"({bucket.condition}), {_NEEDED}"
        )


def _wins(bucket: Bucket, name: str, number: int) -> bool:
    try:
        return bucket.create(name, f"{number}".encode())
    except TakenError:  # S3: 409, as another request is under way
        return False


def _check_parts(bucket: Bucket) -> None:
    """Upload an object as a checkpoint's large files are uploaded."""
    content = b"in parts"
    with bucket.writing(_PARTS, len(content), part=len(content)) as append:
        append(content)
    size = bucket.size(_PARTS)
    if size != len(content):
        raise UnusableError(
            f"the store of {bucket.at()} keeps {size or 'no'} bytes of {len(content)} that are "
            "uploaded in parts; use another store"
        )
