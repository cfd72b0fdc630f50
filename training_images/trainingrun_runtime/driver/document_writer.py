"""Writes documents of the coordinator to the bucket, in a thread; training never waits."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import ray

from ..store.storage_errors import StorageError

log = logging.getLogger(__name__)

_EVERY_S = 2.0
_TIMEOUT_S = 30.0


class DocumentWriter:
    """What is not written is tried again, also at the driver's end.

    Args:
        changed: Calls the coordinator: a reference to the documents that have changed since a
            version of them, and the version of now.
        write: Writes one, over its former version.
    """

    def __init__(self, changed: Callable[[int], Any], write: Callable[[Any], None]) -> None:
        self._ask, self._write = changed, write
        self._version, self._waiting = 0, dict[str, Any]()
        self._lock = threading.Lock()

    def run(self, ended: threading.Event) -> None:
        """Write them until `ended`."""
        while not ended.wait(_EVERY_S):
            self.write()

    def write(self) -> None:
        """Write what is new or has changed; a failure is logged."""
        try:
            with self._lock:
                self._version, changed = ray.get(self._ask(self._version), timeout=_TIMEOUT_S)
                self._waiting |= {document.key: document for document in changed}
                for key, document in list(self._waiting.items()):
                    self._write(document)
                    del self._waiting[key]
        except (StorageError, ray.exceptions.RayError) as error:
            log.warning("documents of the run were not written: %s", error)
