"""When what was watched is stale: nothing is decided on what is missing then."""

import pytest

from support.watches import Answer, a_watch
from trainingrun.cluster.watch_state import STALE_AFTER_S


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def watch(clock):
    return a_watch(clock, "/things", "Things")


def test_what_was_never_listed_is_unknown(watch):
    assert "have not been listed" in watch.stale


def test_the_regular_end_of_a_watch_makes_nothing_stale(watch, clock):
    watch.state = "synced"
    watch.opened(Answer())
    clock[0] += 300
    assert watch.stale is None
    watch.began(watches=True)
    clock[0] += 1
    assert watch.stale is None
    watch.opened(Answer())
    assert watch.stale is None


def test_without_an_open_watch_for_some_seconds_it_is_stale_until_it_has_caught_up(watch, clock):
    watch.state = "synced"
    watch.opened(Answer())
    watch.began(watches=True)
    clock[0] += STALE_AFTER_S + 1
    assert "sends no news of the Things" in watch.stale
