"""What a driver does beside its training: it keeps the lease and looks for a suspend request."""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from trainingrun_protocol.contract import SUSPEND_FILE
from trainingrun_protocol.exit_codes import FAILED_EXIT_CODE, LEASE_LOST_EXIT_CODE

from ..state_directory import state_directory
from ..store.lease import Lease, NotListedError, Superseded
from ..store.storage_errors import StorageError

log = logging.getLogger(__name__)

JOIN_S = 60.0
"""More than the longest request to the store."""
_AGAIN_S = 1.0
"""Seconds after which a thread that an error has ended is begun again."""
_CHECK_S = 3.0
_RENEW_S = 10.0
_PROGRESS_S = 30.0
_SUSPEND_POLL_S = 0.25


class Background:
    """Daemon threads that end when they are told to, and not otherwise.

    One that ends by an error is begun again. The check of the lease may not end so: a driver that
    nobody tells that it is superseded goes on beside its successor, so its process ends.
    """

    def __init__(self) -> None:
        self.ended = threading.Event()
        """Set when they are to end."""
        self._threads: list[threading.Thread] = []

    def start(self, **works: Callable[[threading.Event], None]) -> None:
        """Start one for each of these, by name, that returns soon after `ended` is set."""
        for name, work in works.items():
            thread = threading.Thread(target=self._keep, args=(work,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _keep(self, work: Callable[[threading.Event], None]) -> None:
        while True:
            try:
                work(self.ended)
                return
            except Exception:
                if self.ended.is_set():
                    log.debug("a thread ended with the driver", exc_info=True)
                    return
                log.exception("the thread %r was interrupted", threading.current_thread().name)
            if self.ended.wait(_AGAIN_S):
                return

    def join(self) -> None:
        """Have them end, and wait for it.

        A call to Ray after its shutdown would end the process with exit code 1.
        """
        self.ended.set()
        for thread in self._threads:
            thread.join(JOIN_S)


def keep_lease(
    lease: Lease,
    renew: Callable[[], None],
    report: Callable[[str | None], None],
    ended: threading.Event,
) -> None:
    """Renew the lease until `ended`; end this process as soon as another driver holds the run.

    It ends, too, when the check itself cannot go on: nobody else would find the other driver.

    Args:
        lease: this driver's.
        renew: writes the lease; may raise StorageError.
        report: called with the error while the store does not answer, and with None once it does.
        ended: set when the driver has nothing left to write.
    """
    try:
        _check_lease(lease, renew, report, ended)
    except Superseded as error:
        log.error("%s; this one ends", error)
        os._exit(LEASE_LOST_EXIT_CODE)  # without cleanup: it must not write anything
    except Exception:
        if ended.is_set():
            raise
        log.exception("the lease is not checked any longer, so this driver ends")
        os._exit(FAILED_EXIT_CODE)


def _check_lease(
    lease: Lease,
    renew: Callable[[], None],
    report: Callable[[str | None], None],
    ended: threading.Event,
) -> None:
    renewed = time.monotonic()
    while not ended.wait(_CHECK_S):
        problem: StorageError | None = None
        try:
            try:
                lease.require()
            except NotListedError as error:
                problem = error  # one that was deleted is written again
            if time.monotonic() - renewed >= _RENEW_S:
                renew()
                renewed = time.monotonic()
        except StorageError as error:
            problem = error
        if problem is not None:
            # The lease is not lost. Without the bucket nothing can be committed either.
            log.warning("the lease cannot be checked: %s", problem)
        if not ended.is_set():
            report(None if problem is None else str(problem))


def keep_progress(write: Callable[[], None], ended: threading.Event) -> None:
    """Write where the driver stands to the bucket every 30 s, until `ended`.

    What fails is written by the next call: nothing is decided by it.
    """
    while not ended.wait(_PROGRESS_S):
        try:
            write()
        except Exception as error:
            log.warning("the progress is not in the bucket: %s", error)


def suspend_requested() -> bool:
    """Whether the run is to be suspended: a file in the state directory of the head's pod."""
    return (state_directory() / SUSPEND_FILE).exists()


def watch_suspend_request(suspend: Callable[[], Any], ended: threading.Event) -> None:
    """Call `suspend` once it is requested; returns then, or when `ended` is set."""
    while not ended.wait(_SUSPEND_POLL_S):
        if suspend_requested():
            suspend()
            return
