"""`result.json`: what a successful run leaves in the bucket; with it there, all is done."""

from pydantic import ValidationError

from trainingrun.api.contract import ProgressResult

from .bucket import Bucket, StorageError

KEY = "result.json"
"""Its place below the run's folder."""


def write(bucket: Bucket, result: ProgressResult) -> None:
    """Say that the run is done."""
    bucket.put(KEY, result.model_dump_json(by_alias=True).encode())


def read(bucket: Bucket) -> ProgressResult | None:
    """The result, or none if the run is not done.

    Raises:
        StorageError: The store did not answer, or the object is not a result. Training again
            would overwrite whatever it is, so somebody has to look at it.
    """
    content = bucket.get(KEY)
    if content is None:
        return None
    try:
        return ProgressResult.model_validate_json(content)
    except ValidationError:
        raise StorageError(f"{bucket.uri(KEY)} is not a result; remove it") from None
