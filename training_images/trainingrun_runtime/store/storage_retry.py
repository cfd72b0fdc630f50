"""Retries of requests to the store, with a report of the error while they fail.

A store that does not answer is retried without limit. Errors that a person has to correct (no such
bucket, refused credentials, a full disk) are retried for a limited time: renewed credentials reach
new pods, not running ones.
"""

import logging
import math
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from trainingrun_protocol.contract import STORAGE_PATIENCE_ENV

from .storage_errors import AbsentError, DamagedError, LackingError, UnusableError, recognize

log = logging.getLogger(__name__)

T = TypeVar("T")

_CERTAIN = AbsentError | DamagedError | LackingError
DEFAULT_LIMIT_S = 300.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 10.0

Report = Callable[[str | None], Any]
"""Called with a sentence after each failed request, and once with None when none is made again."""


def limit_s() -> float:
    """Seconds for which a lasting error is retried.

    Raises:
        UnusableError: the environment variable is not a number of seconds.
    """
    value = os.environ.get(STORAGE_PATIENCE_ENV) or str(DEFAULT_LIMIT_S)
    try:
        return float(value)
    except ValueError:
        raise UnusableError(
            f"{STORAGE_PATIENCE_ENV} is {value!r}; write a number of seconds, such as 300"
        ) from None


class StorageRetry:
    """Repeats requests until they succeed.

    Args:
        report: receives the error, and None once the store answers again.
        sleep: waits for a number of seconds.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        report: Report,
        sleep: Callable[[float], Any] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report, self._sleep, self._clock = report, sleep, clock

    def __call__(self, request: Callable[[], T]) -> T:
        """The request's result.

        Raises:
            AbsentError, DamagedError, LackingError: a retry cannot change them.
            StorageError: a lasting error persisted for `limit_s`.
        """
        wait, lasting_since, reported = FIRST_WAIT_S, None, False
        try:
            while True:
                try:
                    return request()
                except Exception as error:
                    found = recognize(error)
                    if found is None or isinstance(found, _CERTAIN):
                        raise
                    now, limit = self._clock(), limit_s() if found.lasting else math.inf
                    lasting_since = (lasting_since or now) if found.lasting else None
                    log.warning("waiting for the store: %s", found)
                    ends = f"; this is retried for {limit:g} s" if found.lasting else ""
                    self._report(f"{found}{ends}")
                    reported = True
                    if lasting_since is not None and now - lasting_since >= limit:
                        found.waited = True
                        raise found from None
                self._sleep(wait)
                wait = min(wait * 2, LONGEST_WAIT_S)
        finally:
            # After an error, too: nothing waits any longer, and no other call takes it back.
            if reported:
                self._report(None)


def report_to(coordinator: Any, source: str) -> Report:
    """A report to the coordinator under the name of its source."""
    return lambda message: coordinator.storage.remote(source, message)
