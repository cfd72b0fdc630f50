"""Uploads TensorBoard's event files to the run's folder while they grow."""

import logging
import threading
import time
from pathlib import Path

from ..store.bucket import Bucket

log = logging.getLogger(__name__)

FOLDER = "tensorboard"
"""Of the event files: in the state directory of the pod, and in the run's folder."""
SHARE = 0.1
"""Most of the time that uploads take: each one sends whole files."""
LAST_S = 30.0
"""Seconds that the last upload may take; the pod of a rank that ends may end as well."""


class EventFiles:
    """The event files of this pod.

    Each process that writes has files of its own: their names hold the time and the host. So those
    of a former attempt stay in the bucket beside those of the next one, and TensorBoard draws one
    curve from all of them. A file only grows, and a reader that finds half an event at its end
    waits for the rest.

    Args:
        folder: where they are written.
        bucket: the run's folder.
        every_s: seconds between two uploads.
    """

    def __init__(self, folder: Path, bucket: Bucket, every_s: float) -> None:
        self._folder, self._bucket, self._every_s = folder, bucket, every_s
        self._sent: dict[Path, tuple[int, int]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep_sending, name="event-files", daemon=True)

    def start(self) -> None:
        """Upload from now on, in a thread."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """Upload what is left; nothing is raised."""
        self._stopping.set()
        self._thread.join(LAST_S)
        if self._thread.is_alive():
            log.warning("the last event files in %s are not uploaded yet", self._folder)

    def send(self) -> None:
        """Upload each file that is new or has changed.

        Raises:
            StorageError: The store did not answer; the rest is tried again with the next call.
        """
        for file in sorted(self._folder.rglob("*")):
            if file.is_symlink() or not file.is_file():
                continue
            stat = file.stat()
            state = (stat.st_size, stat.st_mtime_ns)
            if not stat.st_size or self._sent.get(file) == state:
                continue
            name = file.relative_to(self._folder).as_posix()
            self._bucket.upload(f"{FOLDER}/{name}", file)
            self._sent[file] = state  # as it was before: what came meanwhile is sent next time

    def _keep_sending(self) -> None:
        wait_s = self._every_s
        while not self._stopping.wait(wait_s):
            began = time.monotonic()
            self._try()
            wait_s = max(self._every_s, (time.monotonic() - began) / SHARE)
        self._try()

    def _try(self) -> None:
        try:
            self.send()
        except Exception as error:  # the next time sends them
            log.warning("event files in %s are not uploaded yet: %s", self._folder, error)
