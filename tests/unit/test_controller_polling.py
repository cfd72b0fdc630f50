"""Polling heads that run the user's code: whatever they answer, the operator keeps its pace."""

import asyncio
import contextlib
import gc
import gzip
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web

from trainingrun.controller.poll_turns import PollTurns
from trainingrun.controller.progress_polling import MAX_BYTES, Poller, ProgressSnapshot, Target

KEY = ("team-a", "digits")
LAG_S = 0.05
"""Longest time that the event loop may work on one thing."""


def a_document(**fields) -> bytes:
    return json.dumps({"attempt": 1, "fencingToken": 1, "state": "Training", **fields}).encode()


def a_record(number: int) -> dict:
    return {"number": number, "kind": "Restored", "time": 1.0, "message": "x" * 5000}


@contextlib.asynccontextmanager
async def a_head(answer: Callable[[web.Request], object]) -> AsyncIterator[str]:
    """A real HTTP server on this machine; its URL."""

    async def handle(request: web.Request) -> web.StreamResponse:
        found = answer(request)
        return await found if asyncio.iscoroutine(found) else found

    runner = web.AppRunner(web.Application(client_max_size=2**24), shutdown_timeout=0.1)
    runner.app.add_routes([web.route("*", "/{path:.*}", handle)])
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def a_poller(url_of: Callable[[str], str | None], **options) -> AsyncIterator[Poller]:
    def resolve(key, uid, attempt):
        url = url_of(key[1])
        return url and Target(f"pod of {uid}", url, "k1")

    wanted = {"every_s": 0.02, "per_second": 1000.0, "timeout_s": 2.0} | options
    poller = Poller(resolve, lambda uid: ["new", "old"], **wanted)
    try:
        yield poller
    finally:
        await poller.close()


async def until(probe: Callable[[], object], seconds: float = 30) -> object:
    async with asyncio.timeout(seconds):
        while not (found := probe()):  # noqa: ASYNC110 - the poller reports only changes
            await asyncio.sleep(0.01)
    return found


async def snapshot_of(answer: Callable[[web.Request], object], **options) -> ProgressSnapshot:
    """What the poller makes of a head's answers, once it has one."""
    async with a_head(answer) as url, a_poller(lambda name: url, **options) as poller:
        poller.follow(KEY, "u", 1)
        await until(
            lambda: poller.snapshot(KEY, "u").progress or poller.snapshot(KEY, "u").progress_error
        )
        return poller.snapshot(KEY, "u")


@pytest.fixture(autouse=True)
def own_garbage_only():
    """What other tests have left in memory is no part of a collection that a document causes."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Lag:
    """The longest stretch of work on the event loop, by this thread's own processor time.

    Other processes of a busy machine delay the loop's turns, but use no time of this thread.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def measure(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            self.longest_s = max(self.longest_s, time.thread_time() - before)


def answers(content: bytes, **fields) -> Callable[[web.Request], web.Response]:
    return lambda request: web.Response(body=content, content_type="application/json", **fields)


async def test_a_document_is_read_with_the_newest_token_that_the_head_knows():
    asked = []

    def answer(request: web.Request) -> web.Response:
        asked.append(request.headers["Authorization"])
        known = asked[-1] == "Bearer old"
        return web.Response(body=a_document(step=7), status=200 if known else 401)

    snapshot = await snapshot_of(answer)
    assert snapshot.progress is not None
    assert snapshot.progress.step == 7
    assert asked[:2] == ["Bearer new", "Bearer old"]


async def test_a_head_that_knows_no_token_is_distinguished_from_one_that_is_silent():
    refused = await snapshot_of(lambda request: web.Response(status=401))
    assert refused.refused_key == "k1"
    assert "the head answers 401" in str(refused.progress_error)
    assert refused.progress_failing_s is not None
    async with a_poller(lambda name: "http://127.0.0.1:9") as poller:
        poller.follow(KEY, "u", 1)
        await until(lambda: poller.snapshot(KEY, "u").progress_error)
        snapshot = poller.snapshot(KEY, "u")
    assert snapshot.progress_error == "the head does not answer (connection refused)"
    assert snapshot.refused_key is None


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_the_poller_follows_no_redirect_to_another_run(status):
    others = []

    def other(request: web.Request) -> web.Response:
        others.append(request.path)
        return web.Response(body=a_document(step=99))

    async with a_head(other) as elsewhere:

        def answer(request: web.Request) -> web.Response:
            return web.Response(status=status, headers={"Location": f"{elsewhere}{request.path}"})

        async with a_head(answer) as url, a_poller(lambda name: url) as poller:
            poller.follow(KEY, "u", 1)
            await until(lambda: poller.snapshot(KEY, "u").progress_error)
            poller.post_suspend(KEY, "u", 1)
            await until(lambda: poller._runs[KEY].suspending.done())
            assert str(status) in poller.snapshot(KEY, "u").progress_error
    assert others == []


@pytest.mark.parametrize(("may_act", "wanted"), [(False, []), (True, ["POST /suspend"])])
async def test_a_poller_that_may_not_act_posts_no_suspend(may_act, wanted):
    posted = []

    def answer(request: web.Request) -> web.Response:
        posted.append(f"{request.method} {request.path}")
        return web.Response(status=202)

    async with (
        a_head(answer) as url,
        a_poller(lambda name: url, may_act=lambda: may_act) as poller,
    ):
        poller.post_suspend(KEY, "u", 1)
        await until(lambda: poller._runs[KEY].suspending.done())
        assert posted == wanted


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError, asyncio.CancelledError):
        while True:
            await response.write(b" " * 65536)
    return response


async def drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError, asyncio.CancelledError):
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)
    return response


HOSTILE = {
    "a slow drip": drip,
    "an endless body": endless,
    "a gzip bomb": answers(
        gzip.compress(b'{"attempt": 1, "x": "' + b"0" * 2**22 + b'"}'),
        headers={"Content-Encoding": "gzip"},
    ),
    "100,000 records": answers(a_document(records=[{}] * 100_000)),
    "records of nothing": answers(a_document(records=[1] * 80_000)),
    "deep lists": answers(b"[" * (MAX_BYTES - 1)),
    "deep objects": answers(b'{"a":' * 50_000),
    "a number of 200,000 digits": answers(b'{"attempt":' + b"9" * 200_000 + b"}"),
    "NaN": answers(b'{"attempt": 1, "step": NaN}'),
    "infinity": answers(b'{"attempt": 1, "step": 1e999}'),
    "a list": answers(b"[]"),
    "no JSON": answers(b"<html>"),
    "nothing": answers(b""),
    "a state that is no word": answers(a_document(state={"\x1b[31mHacked": 1})),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_no_healthy_head_sends_is_refused_without_a_stop_of_the_event_loop(name):
    lag = Lag()
    async with asyncio.TaskGroup() as tasks:
        measuring = tasks.create_task(lag.measure())
        snapshot = await snapshot_of(HOSTILE[name], timeout_s=1.0)
        measuring.cancel()
    assert snapshot.progress is None
    assert snapshot.progress_error is not None
    assert len(snapshot.progress_error) < 200
    assert "Hacked" not in snapshot.progress_error
    assert lag.longest_s < LAG_S


WORK = {
    "records": a_document(records=[a_record(number) for number in range(45)]),
    "small records": a_document(records=[{"number": 1, "kind": "Restored", "time": 1}] * 4000),
    "metrics": a_document(metrics={str(number): number for number in range(15_000)}),
    "unknown fields": a_document(**{f"x{number}": number for number in range(14_000)}),
    "empty lists": a_document(x=[[]] * 60_000),
}


@pytest.mark.parametrize("name", WORK)
async def test_the_most_that_is_parsed_does_not_stop_the_event_loop(name):
    assert len(WORK[name]) <= MAX_BYTES
    lag = Lag()
    async with asyncio.TaskGroup() as tasks:
        measuring = tasks.create_task(lag.measure())
        snapshot = await snapshot_of(answers(WORK[name]))
        measuring.cancel()
    assert snapshot.progress is not None
    assert lag.longest_s < LAG_S


async def test_what_is_too_much_in_a_document_is_cut_and_the_rest_is_read():
    content = a_document(
        step=2**70,
        time=1e300,
        secondsLeft=-5,
        worldSize=-1,
        dataWaitShare=1.5,
        records=[
            {"number": number, "kind": "Restored", "time": 1e30, "message": "x" * 20}
            for number in range(1000)
        ],
        metrics={
            **{f"m{number}": 0.5 for number in range(40)},
            "big": 2**80,
            "text": "y" * 5000,
            "nested": {"a": 1},
            **{f"n{number}": 0.5 for number in range(200)},
        },
        failure={"kind": "Application", "message": "\ud800" + "z" * 9000, "traceback": "t" * 9000},
        lostNodes=["n" * 1000] * 5,
    )
    found = (await snapshot_of(answers(content))).progress
    assert found is not None
    assert (found.step, found.time, found.seconds_left, found.world_size) == (2**53, 1e11, 0, 0)
    assert found.data_wait_share == 1
    assert [record.number for record in found.records] == list(range(900, 1000))
    assert found.records[0].time == 1e11
    assert len(found.metrics) <= 100
    assert found.metrics["big"] == float(2**80)
    assert len(found.metrics["text"]) == 200
    assert "nested" not in found.metrics
    assert found.failure is not None
    assert len(found.failure.message) == 2000
    assert len(found.failure.traceback) == 4000
    assert len(found.to_dict()["lostNodes"][0]) == 253
    json.dumps(found.to_dict()).encode()  # a status can hold it
    found.model_dump_json()


async def test_heads_that_hang_keep_no_other_run_waiting():
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with a_head(hang) as hanging, a_head(answers(a_document(step=3))) as good:
        urls = {"good": good}
        async with a_poller(
            lambda name: urls.get(name, hanging), concurrency=4, timeout_s=0.2
        ) as poller:
            bad = [("team-b", f"bad-{number}") for number in range(40)]
            for key in bad:
                poller.follow(key, "u", 1)
            await until(lambda: all(poller.snapshot(key, "u").progress_failing_s for key in bad))
            began = time.monotonic()
            poller.follow(("team-a", "good"), "u", 1)
            await until(lambda: poller.snapshot(("team-a", "good"), "u").progress)
            # A round of the failing ones alone takes 40 / 4 * 0.2 s.
            assert time.monotonic() - began < 1.5
            for key in bad:
                poller.unfollow(key)


async def times_of(
    poller: Poller, asked: list[str], name: str, beside: list[tuple[str, str]], polls: int
) -> list[str]:
    """Which heads are asked from when another tenant's run is followed until its last poll."""
    for key in beside:
        poller.follow(key, "u", 1)
    await until(lambda: len(asked) >= len(beside))
    start = len(asked)
    poller.follow(("team-a", name), "u", 1)
    await until(lambda: asked[start:].count(name) >= polls)
    return asked[start:]


async def test_slow_heads_of_one_namespace_keep_no_run_of_another_one_waiting():
    """They answer in time, and each time late: 24 of them, for which there are 5 places."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        name = request.path.split("/")[1]
        asked.append(name)
        await asyncio.sleep(0 if name == "good" else 0.7)
        return web.Response(body=a_document(step=len(asked)))

    async with a_head(answer) as url:
        options = {"concurrency": 4, "per_second": 1000.0, "every_s": 0.02}
        async with a_poller(lambda name: f"{url}/{name}", **options) as poller:
            slow = [("team-b", f"slow-{number}") for number in range(24)]
            for key in slow[:10]:  # more are not needed to know which ones are slow
                poller.follow(key, "u", 1)
            await until(lambda: len(set(asked)) == 10)
            order = await times_of(poller, asked, "good", slow, polls=8)
    # In a queue that all share each poll of it would come after one of each of the 24.
    assert len(order) <= 8 + 4 * 8 + 24, order


async def test_many_runs_of_one_namespace_take_no_other_one_s_share_of_the_rate():
    asked: list[str] = []

    def answer(request: web.Request) -> web.Response:
        asked.append(request.path.split("/")[1])
        return web.Response(body=a_document(step=len(asked)))

    async with (
        a_head(answer) as url,
        a_poller(lambda name: f"{url}/{name}", per_second=40.0) as poller,
    ):
        many = [("team-b", f"many-{number}") for number in range(100)]
        order = await times_of(poller, asked, "good", many, polls=3)
    # Ten begin together, and one of them is the other tenant's. In a queue that all share 100 polls
    # would come before each of its own.
    assert len(order) <= 150, order


async def test_a_head_that_answers_slowly_is_asked_less_often():
    asked: list[float] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(time.monotonic())
        await asyncio.sleep(0.2)
        return web.Response(body=a_document(step=len(asked)))

    async with a_head(answer) as url, a_poller(lambda name: url) as poller:
        poller.follow(KEY, "u", 1)
        await until(lambda: len(asked) >= 3)
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert min(pauses) >= 0.2 + 5 * 0.2 * 0.8, "five times what its answer takes"


async def test_an_occasion_is_polled_for_once_and_nobody_waits_for_the_answer():
    notified, polled, answer_now = [], [], asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        polled.append(request.path)
        await answer_now.wait()
        return web.Response(body=a_document(step=3, state="Succeeded"))

    async with (
        a_head(slow) as url,
        a_poller(lambda name: url, on_change=lambda *key: notified.append(key)) as poller,
    ):
        assert poller.poll_once(KEY, "u", 1, "end of j")
        assert poller.poll_once(KEY, "u", 1, "end of j"), "still awaited, and not polled again"
        await until(lambda: polled)
        answer_now.set()
        await until(lambda: notified)
        assert not poller.poll_once(KEY, "u", 1, "end of j")
        assert poller.snapshot(KEY, "u").progress.step == 3
        assert (notified, len(polled)) == ([KEY], 1)


async def test_a_head_that_never_answers_delays_a_decision_by_a_bounded_time():
    notified = []

    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with (
        a_head(hang) as url,
        a_poller(
            lambda name: url, timeout_s=0.2, on_change=lambda *key: notified.append(key)
        ) as poller,
    ):
        assert poller.poll_once(KEY, "u", 1, "start")
        await until(lambda: notified, seconds=10)
        assert not poller.poll_once(KEY, "u", 1, "start")
        assert poller.snapshot(KEY, "u").progress_error == "the head does not answer (timeout)"


async def test_a_run_without_a_head_is_not_waited_for():
    async with a_poller(lambda name: None) as poller:
        assert not poller.poll_once(KEY, "u", 1, "start")


async def test_how_long_a_head_was_polled_is_known_though_it_has_no_document_yet():
    async with (
        a_head(lambda request: web.Response(status=503)) as url,
        a_poller(lambda name: url) as poller,
    ):
        assert poller.snapshot(KEY, "u").progress_polled_s is None
        poller.follow(KEY, "u", 1)
        await until(lambda: (poller.snapshot(KEY, "u").progress_polled_s or 0.0) > 0.1)
        snapshot = poller.snapshot(KEY, "u")
        assert (snapshot.progress, snapshot.progress_failing_s) == (None, None)
        since = time.monotonic()
        poller.follow(KEY, "u", 2)

        def counts_anew() -> bool:
            polled_s = poller.snapshot(KEY, "u").progress_polled_s
            return polled_s is not None and polled_s <= time.monotonic() - since

        await until(counts_anew)


async def test_a_record_that_only_a_newer_runtime_knows_is_left_out():
    kinds = ["Restored", "Teleported", "WorkerLost"]
    content = a_document(
        records=[{"number": n, "kind": kind, "time": 1} for n, kind in enumerate(kinds, 1)]
    )
    found = (await snapshot_of(answers(content))).progress
    assert found is not None
    assert [(record.number, record.kind) for record in found.records] == [
        (1, "Restored"),
        (3, "WorkerLost"),
    ]


async def test_500_slow_heads_of_one_namespace_delay_no_poll_of_another_one(monkeypatch):
    """At the operator's own bounds, each answering shortly before it would count as silent.

    Counted is what begins before a poll that waits for its turn: a place becomes free within the
    2 s of a head's answer, on a busy machine later.
    """
    begun: list[str] = []
    before_ours: list[int] = []
    of_all = PollTurns.turn

    @contextlib.asynccontextmanager
    async def turn(turns: PollTurns, namespace: str, *, slow: bool) -> AsyncIterator[None]:
        waits_since = len(begun)
        async with of_all(turns, namespace, slow=slow):
            if namespace == "team-a":
                before_ours.append(len(begun) - waits_since)
            begun.append(namespace)
            yield

    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(0 if request.path.startswith("/quick") else 1.9)
        return web.Response(body=a_document(step=len(begun)))

    monkeypatch.setattr(PollTurns, "turn", turn)
    async with (
        a_head(answer) as url,
        a_poller(
            lambda name: f"{url}/{name}", concurrency=32, per_second=50.0, every_s=0.5
        ) as poller,
    ):
        for number in range(500):
            poller.follow(("team-b", f"slow-{number}"), "u", 1)
        await until(lambda: len(begun) >= 32)  # each place is taken
        poller.follow(("team-a", "quick"), "u", 1)
        await until(lambda: len(before_ours) >= 5, seconds=120)
        assert poller.snapshot(("team-a", "quick"), "u").progress is not None
    # In one queue for all of them 468 come before the first one.
    assert max(before_ours) <= 16, before_ours
