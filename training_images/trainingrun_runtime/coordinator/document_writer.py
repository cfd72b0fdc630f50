"""Keeps the progress document up to date."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from trainingrun_protocol.progress import Progress

from ..progress import document as progress_document

log = logging.getLogger(__name__)

EVERY_S = 0.25
"""Seconds between two writes."""
LOOK_EVERY = 4
"""Writes between two looks at the cluster."""


class DocumentWriter:
    """A thread that writes the document, and looks at the cluster every second.

    Args:
        path: of the document.
        document: makes it.
        look: asks Ray for what nobody tells.
    """

    def __init__(
        self, path: Path, document: Callable[[], Progress], look: Callable[[], None]
    ) -> None:
        self._path, self._document, self._look = path, document, look
        self._writing, self._closed = threading.Lock(), threading.Event()
        threading.Thread(target=self._keep_writing, name="progress", daemon=True).start()

    def close(self) -> None:
        """Write no more by itself."""
        self._closed.set()

    def write(self) -> None:
        """Write the document now."""
        # One at a time: a slower thread would replace a final document with an older one.
        with self._writing:
            progress_document.write(self._path, self._document())

    def _keep_writing(self) -> None:
        count = 0
        while not self._closed.wait(EVERY_S):
            count += 1
            try:
                if count % LOOK_EVERY == 0:
                    self._look()
                self.write()
            except Exception:  # a failed call of Ray must not end the updates of the document
                log.exception("the progress document could not be written")
