"""The page of the run at a driver's end: what keeps it from being written changes nothing else."""

import logging
import threading

from trainingrun_protocol.progress import Progress

from ..error_text import first_line
from ..store.lease import Lease

log = logging.getLogger(__name__)

TIMEOUT_S = 20.0
"""Seconds for which a driver's end waits for the page."""


def write(lease: Lease, name: str, progress: Progress) -> str | None:
    """Write the page, before the document that says that this driver has ended; never raises.

    Args:
        lease: This driver's.
        name: Of the run or trial.
        progress: How this driver has ended.

    Returns:
        Its URI; None: it is not written, or not in time.
    """
    uris: list[str] = []

    def write_it() -> None:
        try:
            from ..report_page import writing  # pyarrow, which a start does not wait for

            uris.append(writing.write(lease, name, progress))
        except Exception as error:
            log.warning("the page of the run was not written: %s", first_line(error))

    # Without a call to Ray, which may be shut down before a slow store has answered.
    thread = threading.Thread(target=write_it, name="page", daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    if thread.is_alive():
        log.warning("the page of the run was not written within %.0f s", TIMEOUT_S)
    return uris[0] if uris else None
