"""Writes the documents of losses to the bucket, in a thread of the driver; training never waits."""

import logging
import threading
from typing import Any

import ray

from ..store import loss_documents
from ..store.bucket import Bucket, StorageError
from ..store.loss_documents import LossDocument

log = logging.getLogger(__name__)

_EVERY_S = 2.0
_TIMEOUT_S = 30.0


class LossWriter:
    """What is not written is tried again, also at the driver's end.

    Args:
        coordinator: handle of the `Coordinator` actor.
        bucket: The run's folder.
    """

    def __init__(self, coordinator: Any, bucket: Bucket) -> None:
        self._coordinator, self._bucket = coordinator, bucket
        self._version, self._waiting = 0, dict[str, LossDocument]()
        self._lock = threading.Lock()

    def run(self, ended: threading.Event) -> None:
        """Write them until `ended`."""
        while not ended.wait(_EVERY_S):
            self.write()

    def write(self) -> None:
        """Write what is new or has changed; a failure is logged."""
        try:
            with self._lock:
                self._version, changed = ray.get(
                    self._coordinator.losses.remote(self._version), timeout=_TIMEOUT_S
                )
                self._waiting |= {document.key: document for document in changed}
                for key, document in list(self._waiting.items()):
                    loss_documents.write(self._bucket, document)
                    del self._waiting[key]
        except (StorageError, ray.exceptions.RayError) as error:
            log.warning("the history of losses was not written: %s", error)
