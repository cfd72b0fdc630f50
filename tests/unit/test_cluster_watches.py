"""When what was watched is stale: nothing is decided on what is missing then."""

import asyncio
import json
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from support.answering import answering
from support.builders import an_object
from support.watches import a_watch
from trainingrun.cluster import kuberay
from trainingrun.cluster.api_client import Connection, Forbidden
from trainingrun.cluster.credentials import Credentials
from trainingrun.cluster.object_store import Key
from trainingrun.cluster.run_stores import Stores
from trainingrun.cluster.watches import (
    HANDLED_CHECK_S,
    RELIST_S,
    STALE_AFTER_S,
    HistoryRewound,
    Watches,
)

LASTS_S = 8.0
"""For which a watch is open, as kopf requests it."""


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def watch(clock):
    return a_watch(clock, "/things", "Thing")


class Lists:
    """An API server that answers lists of objects' metadata with what the test sets."""

    def __init__(self, version: int, *items: tuple[str, str, int]):
        self.version, self.items = version, items

    async def list_versions(self, *_: Any) -> tuple[dict[Key, tuple[str, int]], int]:
        """The list."""
        return {("ns", name): (uid, version) for name, uid, version in self.items}, self.version


async def opened_and_compared(watch) -> None:
    watch._connection = Lists(1)
    watch.opened(LASTS_S)
    await watch._compare()


def test_what_was_never_listed_is_unknown(watch):
    assert "have not been listed" in watch.stale


async def test_the_regular_end_of_a_watch_makes_nothing_stale(watch, clock):
    await opened_and_compared(watch)
    for _ in range(3):
        clock[0] += LASTS_S
        assert watch.stale is None
        watch.began(watches=True)
        clock[0] += 1
        assert watch.stale is None
        watch.opened(LASTS_S)
        assert watch.stale is None


async def test_without_an_open_watch_for_some_seconds_it_is_stale_until_it_has_caught_up(
    watch, clock
):
    await opened_and_compared(watch)
    watch.began(watches=True)
    clock[0] += LASTS_S + STALE_AFTER_S + 1
    assert "sends no news of the Things" in watch.stale
    watch.opened(LASTS_S)
    assert "sends no news of the Things" in watch.stale
    await watch._compare()
    assert watch.stale is None


async def test_a_watch_that_fails_is_stale_soon(watch, clock):
    await opened_and_compared(watch)
    watch.failed()
    assert watch.stale is None
    clock[0] += STALE_AFTER_S + 1
    assert "sends no news of the Things" in watch.stale


def test_a_kind_that_is_checked_and_missing_is_no_sign_that_kopf_hangs(watch, clock):
    clock[0] += 3600
    watch.set_missing()
    assert (watch.alive_at, watch.stale) == (clock[0], None)


A_DISCOVERY = "/apis/ray.io/v1"
A_CRD = kuberay.crd_path("ray.io/v1", "RayJob")


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param({A_DISCOVERY: (404, {}), A_CRD: (200, {"kind": "X"})}, id="not served"),
        pytest.param({A_DISCOVERY: (503, {})}, id="unknown"),
        pytest.param({A_DISCOVERY: (404, {}), A_CRD: (401, {})}, id="unknown, refused"),
    ],
)
async def test_a_kind_that_kopf_has_no_reason_to_watch_is_no_sign_that_it_hangs(answers):
    """Or the liveness probe would end the operator every quarter of an hour."""

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, str]:
        status, found = answers[request.path]
        return status, json.dumps(found)

    stores = Stores()
    with answering(answer) as port:
        connection = Connection(Credentials(f"http://127.0.0.1:{port}"))
        try:
            watches = Watches(connection, stores)
            watch = watches.of("RayJob", "ns")
            long_ago = watch.alive_at = watch._fresh_until = time.monotonic() - 3600
            await watches._check_kind(stores.ray_jobs)
            assert watch.alive_at > long_ago + 3600

            watch.began(watches=False)
            watch.alive_at = long_ago
            await watches._check_kind(stores.ray_jobs)
            assert watch.alive_at == long_ago, "a request that never ends is such a sign"
        finally:
            await connection.close()


def test_what_is_requested_again_now_and_then_is_watched_however_often_it_is_refused(watch, clock):
    for _ in range(10):
        clock[0] += 8
        assert 0 < watch.unwatched_s <= 8
        watch.began(watches=False)
        assert watch.unwatched_s == 0
        watch.failed(Forbidden("things are forbidden"))
    clock[0] += 300
    assert watch.unwatched_s == 300


def test_a_watch_that_has_just_ended_is_no_longer_unwatched_than_that(watch, clock):
    watch.began(watches=True)
    watch.opened(LASTS_S)
    clock[0] += LASTS_S
    watch.failed()
    assert watch.unwatched_s == 0
    clock[0] += STALE_AFTER_S + 1
    assert watch.unwatched_s == 1


@pytest.fixture
def seen(watch):
    """What the watch has brought so far."""
    watch.opened(LASTS_S)
    watch.state, watch._caught_up = "synced", True
    for name, uid, version in (("one", "1", 40), ("two", "2", 90)):
        watch.store.update(an_object(name, version, uid))
    return watch


@pytest.mark.parametrize(
    "lists",
    [
        pytest.param(Lists(80, ("one", "1", 40)), id="an older list"),
        pytest.param(Lists(120, ("one", "1", 40), ("two", "2", 60)), id="an older object"),
    ],
)
async def test_a_cluster_restored_from_a_backup_is_found_out(seen, lists):
    seen._connection = lists
    with pytest.raises(HistoryRewound, match="the Things are older than what was read before"):
        await seen._compare()


async def test_what_changed_while_the_list_was_read_is_no_other_history(seen):
    seen._connection = Lists(95, ("one", "1", 40), ("two", "2", 90))
    seen.store.update(an_object("one", 99, "1"))
    seen.store.newest = 95
    await seen._compare()
    assert sorted(seen.store.keys()) == [("ns", "one"), ("ns", "two")]


async def test_to_catch_up_is_to_have_all_that_there_is_now(seen):
    seen._connection = Lists(130, ("one", "1", 125))
    waiting = asyncio.create_task(seen.catch_up())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    seen.store.update(an_object("one", 125, "1"))
    await waiting
    assert seen.store.keys() == [("ns", "one")], "two was deleted"


async def test_nobody_waits_for_what_is_deleted_before_its_event_comes(seen, clock):
    seen._connection = Lists(130, ("one", "1", 40), ("three", "3", 125))
    waiting = asyncio.create_task(seen.catch_up())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    seen._connection = Lists(140, ("one", "1", 40))
    clock[0] += RELIST_S + 1
    async with asyncio.timeout(30):
        await waiting
    assert seen.store.keys() == [("ns", "one")]


class Growing:
    """An API server with another object in each list, of which an event comes late."""

    def __init__(self, clock: list[float], late_s: float):
        self._clock, self._late_s = clock, late_s
        self._made: list[tuple[str, float]] = []

    async def list_versions(self, *_: Any) -> tuple[dict[Key, tuple[str, int]], int]:
        """The list."""
        self._made.append((f"new-{len(self._made)}", self._clock[0]))
        listed = {("ns", n): (n, 200 + i) for i, (n, _) in enumerate(self._made)}
        return listed, 200 + len(self._made)

    def arrived(self) -> list[dict[str, Any]]:
        """Objects whose events have come."""
        before = self._clock[0] - self._late_s
        made = enumerate(self._made)
        return [an_object(name, 200 + i, name) for i, (name, time) in made if time <= before]


async def test_to_catch_up_ends_though_objects_are_made_and_events_are_later_than_that(seen, clock):
    seen._connection = connection = Growing(clock, late_s=1.5 * RELIST_S)
    waiting = asyncio.create_task(seen.catch_up())
    for _ in range(100):
        if waiting.done():
            break
        await asyncio.sleep(HANDLED_CHECK_S)
        clock[0] += 0.3 * RELIST_S
        seen.opened(LASTS_S)
        for one in connection.arrived():
            seen.store.update(one)
    assert waiting.done()


async def test_nobody_waits_for_a_watch_of_which_nothing_can_be_known(seen, clock):
    seen._connection = Lists(130, ("one", "1", 125))
    waiting = asyncio.create_task(seen.catch_up())
    seen.began(watches=True)
    clock[0] += LASTS_S + STALE_AFTER_S + 1
    await waiting
