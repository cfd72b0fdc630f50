"""`history/` in the run's folder: a document for each loss, by the driver that survived or ended.

The driver of a lost head writes nothing any more: its successor writes that loss, from the lease,
as it does for a driver that ended with its attempt while the store was away.
Only a driver writes documents with its own fencing token in their names, so none is overwritten by
another one.
"""

import json
from collections.abc import Iterator

from pydantic import ValidationError

from trainingrun_protocol.wire import Count, Duration, Name, Sentence, UnixTime, Wire

from .bucket import Bucket

FOLDER = "history"
"""Where they are, below the run's folder."""


class LossDocument(Wire):
    """One loss, as the driver knows it; the operator's status has zone, capacity and signs."""

    attempt: Count
    """Attempt whose driver has written it."""
    fencing_token: Count
    """Of that driver's lease."""
    number: Count
    """Of its record in the progress document; 0: the loss of the driver before it."""
    reason: Name
    """Its class, such as WorkerLost or HeadLost; DriverEnded: that of a former attempt has ended,
    and has not written how."""
    time: UnixTime
    """Unix time in seconds; of a lost head that of its last known step."""
    message: Sentence = ""
    """What was seen, in a sentence."""
    node: Name | None = None
    """Kubernetes node on which it happened, where known."""
    pod: Name | None = None
    """Pod that was lost, where known."""
    step: Count | None = None
    """Last step before it; of a lost head the one in its lease, which is up to 10 s old."""
    restored_step: Count | None = None
    """Step from which the training continued; none: it has not, or not in this attempt."""
    lost_steps: Count | None = None
    """Steps done again; losses that end with one restart share them, and the first has all."""
    lost_work_seconds: Duration | None = None
    """What these steps had taken."""
    recovery_seconds: Duration | None = None
    """From the last step before it to the first one after it."""
    action: Sentence = ""
    """What was done about it, in a sentence."""

    @property
    def key(self) -> str:
        """Where it is in the run's folder."""
        return f"{FOLDER}/{self.attempt}-{self.fencing_token:06d}-{self.number}.json"


def write(bucket: Bucket, document: LossDocument) -> None:
    """Write a document, over its former version too.

    Raises:
        StorageError: The store did not answer.
    """
    bucket.put(document.key, json.dumps(document.to_dict()).encode())


def read(bucket: Bucket) -> Iterator[LossDocument]:
    """The losses of a run, in the order of their keys; what cannot be read is left out.

    Raises:
        StorageError: The store did not answer.
    """
    for entry in sorted(bucket.list(FOLDER)):
        content = bucket.get(entry.key)
        try:
            yield LossDocument.model_validate_json(content or b"")
        except ValidationError:
            continue
