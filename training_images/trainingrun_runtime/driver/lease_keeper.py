"""Keeps a driver's lease as long as it lives, and ends the driver once another one has it."""

import logging
import os
import threading
import time
from collections.abc import Callable

from trainingrun_protocol.exit_codes import LEASE_LOST_EXIT_CODE

from ..store.lease import Lease
from ..store.storage_errors import StorageError

log = logging.getLogger(__name__)

CHECK_S = 3.0
RENEW_S = 10.0


def keep(
    lease: Lease,
    renew: Callable[[], None],
    report: Callable[[str | None], None],
    ended: threading.Event,
) -> None:
    """Renew the lease until `ended`; end this process as soon as another driver holds the run.

    Args:
        lease: this driver's.
        renew: writes the lease; may raise StorageError.
        report: called with the error while the store does not answer, and with None once it does.
        ended: set when the driver has nothing left to write.
    """
    renewed = time.monotonic()
    while not ended.wait(CHECK_S):
        try:
            if not lease.held():
                log.error("another driver took over this run; this one ends")
                os._exit(LEASE_LOST_EXIT_CODE)  # without cleanup: it must not write anything
            if time.monotonic() - renewed >= RENEW_S:
                renew()
                renewed = time.monotonic()
            problem = None
        except StorageError as error:
            # The lease is not lost. Without the bucket nothing can be committed either.
            log.warning("the lease cannot be checked: %s", error)
            problem = str(error)
        if not ended.is_set():
            report(problem)
