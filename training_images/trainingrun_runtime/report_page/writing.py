"""Writes `report.html` into a run's folder, where whoever can read the bucket opens it."""

import time

from trainingrun_protocol.progress import Progress

from ..store import last_progress
from ..store.lease import Lease
from . import contents, folder, page

KEY = "report.html"
"""The page, below the run's folder."""

_LARGEST_TABLE = 32e6
"""Bytes of a table of metrics, as it is stored, that a head's memory is enough for."""
_MOST_ROWS = 2e6
"""Rows of a table of metrics that a head's memory is enough for; see `curves`."""


def write(lease: Lease, name: str, progress: Progress) -> str:
    """Write where this driver stands, and the page of the whole run; the page's URI.

    Args:
        lease: This driver's.
        name: Of the run.
        progress: This driver's document.

    Raises:
        Superseded: Another driver holds the run, and writes its page.
        StorageError: The store did not answer.
    """
    bucket = lease.bucket
    last_progress.write(bucket, progress)
    found = folder.read(bucket, _LARGEST_TABLE, _MOST_ROWS)
    source = f"By the driver of attempt {lease.attempt}, from the run's folder."
    text = page.html(contents.of(name, found, None, time.time(), source))
    lease.require()
    bucket.upload(KEY, text.encode(errors="replace"), content_type="text/html; charset=utf-8")
    return bucket.uri(KEY)
