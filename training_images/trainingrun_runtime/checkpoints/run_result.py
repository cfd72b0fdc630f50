"""`result/<epoch>.json`: what a successful run leaves in the bucket; with it there, all is done.

A result is fenced as everything else is: it is named by its driver's epoch, created once, and
counts only while no later driver holds the run. One that a superseded driver writes is never read.
"""

from pydantic import ValidationError

from trainingrun.api.contract import ProgressResult

from ..coordination import lease
from ..coordination.lease import Lease
from .bucket import Bucket
from .storage_errors import UnusableError

FOLDER = "result"
"""Where results are, below the run's folder."""


def write(held: Lease, result: ProgressResult) -> ProgressResult:
    """Say that the run is done; the result that counts.

    That is the one given, unless this driver wrote another one before.

    Raises:
        Superseded: A later driver holds the run.
        StorageError: The store did not answer.
    """
    held.require()
    content = result.model_dump_json(by_alias=True).encode()
    if held.bucket.create(_key(held.epoch), content):
        return result
    return _read(held.bucket, held.epoch) or result


def read(bucket: Bucket) -> ProgressResult | None:
    """The result, or none if the run is not done.

    Raises:
        StorageError: The store did not answer, or the object is not a result. Training again
            would overwrite whatever it is, so somebody has to look at it.
    """
    return _read(bucket, lease.highest(bucket))


def adopt(held: Lease) -> ProgressResult | None:
    """The result of the driver before this one, if it ended between `read` and `Lease.take`.

    It was done, so this driver says the same, under its own epoch. Only the driver directly
    before it counts: earlier ones had been superseded.
    """
    found = _read(held.bucket, held.epoch - 1)
    return write(held, found) if found else None


def _key(epoch: int) -> str:
    return f"{FOLDER}/{epoch:06d}.json"


def _read(bucket: Bucket, epoch: int) -> ProgressResult | None:
    content = bucket.get(_key(epoch)) if epoch > 0 else None
    if content is None:
        return None
    try:
        return ProgressResult.model_validate_json(content)
    except ValidationError:
        raise UnusableError(f"{bucket.uri(_key(epoch))} is not a result; remove it") from None
