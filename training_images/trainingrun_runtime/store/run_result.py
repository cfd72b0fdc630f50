"""`result/<fencing token>.json`: the result of a successful run, in the bucket.

It is created once, under the fencing token of its driver, and is valid only while no later driver
holds the run. One that a superseded driver writes is never read.
"""

from pydantic import ValidationError

from trainingrun_protocol.progress import ProgressResult

from . import lease
from .bucket import Bucket
from .lease import Lease
from .storage_errors import UnusableError

FOLDER = "result"
"""Where results are, below the run's folder."""


def write(held: Lease, result: ProgressResult) -> ProgressResult:
    """Write the result of the run; returns the valid one.

    That is the given one, unless this driver has written another one before.

    Raises:
        Superseded: A later driver holds the run.
        StorageError: The store did not answer.
    """
    held.require()
    content = result.model_dump_json(by_alias=True).encode()
    created = held.bucket.create(lease.document_key(FOLDER, held.fencing_token), content)
    # The next driver may have taken the lease, and found no result, just before it was there.
    held.require()
    return result if created else _read(held.bucket, held.fencing_token) or result


def read(bucket: Bucket) -> ProgressResult | None:
    """The result, or none if the run is not done.

    Raises:
        StorageError: The store did not answer, or the object is not a result. Training again
            would overwrite whatever it is, so a person has to check it.
    """
    return _read(bucket, lease.newest_fencing_token(bucket))


def adopt(held: Lease) -> ProgressResult | None:
    """The result of the driver before this one, if it ended between `read` and `Lease.take`.

    The run was done, so this driver writes the same result under its own fencing token. Only the
    driver directly before it is read: earlier ones had been superseded.
    """
    found = _read(held.bucket, held.fencing_token - 1)
    return write(held, found) if found else None


def _read(bucket: Bucket, fencing_token: int) -> ProgressResult | None:
    content = bucket.get(lease.document_key(FOLDER, fencing_token)) if fencing_token > 0 else None
    if content is None:
        return None
    try:
        return ProgressResult.model_validate_json(content)
    except ValidationError:
        raise UnusableError(
            f"{bucket.uri(lease.document_key(FOLDER, fencing_token))} is not a result; remove it"
        ) from None
