"""The API server's clock, as the Date of its answers shows it.

The API server stamps objects, and the reconciler compares these times with now: by a clock of its
own that is 15 seconds ahead, a pod that replaces a lost one would be older than the loss.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

LONGEST_S = 2.0
"""Seconds of a request; the Date of an answer that took longer says too little."""
_SECOND = timedelta(seconds=1)


def seconds_since_boot() -> float:
    """Seconds by a clock that only goes forward, also while the process or machine is stopped."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


_BOOTED = datetime.now(UTC) - timedelta(seconds=seconds_since_boot())


def utc_now() -> datetime:
    """This machine's clock as it was set when the process began.

    Where it is set right later, a time that is decided by, such as a deadline, takes no leap: what
    it was wrong by is known from the API server's answers.
    """
    return _BOOTED + timedelta(seconds=seconds_since_boot())


class ServerClock:
    """Until the first answer, and while it is close enough, this machine's clock.

    Args:
        own: this machine's clock.
    """

    def __init__(self, own: Callable[[], datetime] = utc_now) -> None:
        self.own = own
        self._ahead = timedelta()

    def now(self) -> datetime:
        """What the API server's clock shows, to a second."""
        return self.own() + self._ahead

    def answered(self, date: datetime | None, sent: datetime) -> None:
        """An answer has just arrived.

        Args:
            date: its Date, in whole seconds; None: it has none.
            sent: when the request was sent, by this machine's clock.
        """
        received = self.own()
        if date is None or not timedelta() <= received - sent <= timedelta(seconds=LONGEST_S):
            return  # also where this process, or its clock, was set forward or back meanwhile
        # The server wrote it in between: as little is corrected as the two times allow.
        self._ahead = min(max(self._ahead, date - received), date + _SECOND - sent)


def date_of(header: str | None) -> datetime | None:
    """An answer's Date; None: it has none that can be read."""
    try:
        date = parsedate_to_datetime(header or "")
    except ValueError:
        return None
    return date if date.tzinfo is not None else None
