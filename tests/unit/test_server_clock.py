"""Now, by the clock of the API server that has stamped the objects."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trainingrun.cluster import server_clock
from trainingrun.cluster.server_clock import LONGEST_S, ServerClock, date_of

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Clocks:
    """This machine's, and the API server's, which is so many seconds ahead of it."""

    def __init__(self, ahead_s: float) -> None:
        self.own, self.ahead_s = NOON, ahead_s
        self.server = ServerClock(lambda: self.own)

    def exchange(self, seconds: float = 0.1) -> None:
        """A request; the server answers at half of its time."""
        sent, written = self.own, self.own + timedelta(seconds=seconds / 2 + self.ahead_s)
        self.own += timedelta(seconds=seconds)
        self.server.answered(written.replace(microsecond=0), sent)

    @property
    def wrong_s(self) -> float:
        own = self.own + timedelta(seconds=self.ahead_s)
        return abs((self.server.now() - own).total_seconds())


@pytest.mark.parametrize("ahead_s", [-3600.0, -15.4, 15.4, 3600.0])
def test_it_is_known_to_a_second_after_one_answer_and_better_after_more(ahead_s: float) -> None:
    clocks = Clocks(ahead_s)
    clocks.exchange()
    assert clocks.wrong_s <= 1.1
    for _ in range(20):
        clocks.own += timedelta(seconds=0.23)
        clocks.exchange()
    assert clocks.wrong_s <= 0.3


def test_a_clock_that_agrees_is_left_alone() -> None:
    clocks = Clocks(0.0)
    for _ in range(20):
        clocks.own += timedelta(seconds=0.23)
        clocks.exchange()
        assert clocks.server.now() == clocks.own


def test_a_clock_that_is_set_right_is_followed() -> None:
    clocks = Clocks(60.0)
    clocks.exchange()
    clocks.ahead_s = 0.0
    clocks.exchange()
    assert clocks.wrong_s <= 1.1


@pytest.mark.parametrize("seconds", [LONGEST_S + 1, 3600.0, -30.0])
def test_an_answer_to_a_process_that_was_stopped_or_whose_clock_was_set_says_nothing(
    seconds: float,
) -> None:
    clocks = Clocks(60.0)
    clocks.exchange(seconds)
    assert clocks.server.now() == clocks.own


@pytest.mark.parametrize("header", [None, "", "yesterday", "Mon, 30 Nov 2026 12:00:00 -0000"])
def test_an_answer_without_a_date_says_nothing(header: str | None) -> None:
    assert date_of(header) is None
    clocks = Clocks(60.0)
    clocks.server.answered(date_of(header), clocks.own)
    assert clocks.server.now() == clocks.own


def test_where_this_machine_s_clock_is_set_right_nothing_is_decided_by_a_leap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was a quarter of an hour late, which the API server's answers have told."""
    clock = ServerClock()
    clock.answered(clock.own() + timedelta(minutes=15), clock.own())
    before = clock.now()

    class SetRight(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "SetRight":
            return cls.fromtimestamp(time.time() + 900, tz)

    monkeypatch.setattr(server_clock, "datetime", SetRight)
    monkeypatch.setattr(time, "time", lambda read=time.time: read() + 900)
    assert abs((clock.now() - before).total_seconds()) < 10
