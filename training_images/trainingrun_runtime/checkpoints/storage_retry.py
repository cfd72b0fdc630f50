"""Waiting for the store: a request is repeated until it works, and the wait is told.

An outage costs time and nothing else: nobody gives up because a network is away. What somebody
has to correct (no such bucket, refused credentials, a full disk) is waited for too, but not for
ever: credentials that were renewed reach pods that are made anew, not those that run.
"""

import logging
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from trainingrun.api.contract import STORAGE_PATIENCE_ENV

from .storage_errors import AbsentError, DamagedError, UnusableError, recognize

log = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_LIMIT_S = 300.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 10.0

Tell = Callable[[str | None], Any]
"""Called with a sentence while the store does not do what it is asked, and once with None after."""


def limit_s() -> float:
    """Seconds for which an error that waiting rarely heals is waited for.

    Raises:
        UnusableError: what the environment says is no number of seconds.
    """
    said = os.environ.get(STORAGE_PATIENCE_ENV) or str(DEFAULT_LIMIT_S)
    try:
        return float(said)
    except ValueError:
        raise UnusableError(
            f"{STORAGE_PATIENCE_ENV} is {said!r}; write a number of seconds, such as 300"
        ) from None


class Patience:
    """Repeats requests until they work.

    Args:
        tell: told of the trouble, and of its end.
        sleep: waits so many seconds.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        tell: Tell,
        sleep: Callable[[float], Any] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell, self._sleep, self._clock = tell, sleep, clock

    def __call__(self, request: Callable[[], T]) -> T:
        """The request's answer.

        Raises:
            AbsentError, DamagedError: what is asked for is not there, which no waiting changes.
            StorageError: an error that waiting does not heal went on for `limit_s`.
        """
        wait, refused_since, told = FIRST_WAIT_S, None, False
        while True:
            try:
                answer = request()
            except Exception as error:
                trouble = recognize(error)
                if trouble is None or isinstance(trouble, AbsentError | DamagedError):
                    raise
                now = self._clock()
                refused_since = (refused_since or now) if trouble.lasting else None
                log.warning("waiting for the store: %s", trouble)
                self._tell(str(trouble))
                told = True
                if refused_since is not None and now - refused_since >= limit_s():
                    trouble.waited = True
                    raise trouble from None
            else:
                if told:
                    self._tell(None)
                return answer
            self._sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT_S)


def told_to(board: Any, source: str) -> Tell:
    """Tells a board; `source` keeps apart those who tell it."""
    return lambda message: board.storage.remote(source, message)
