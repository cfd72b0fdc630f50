"""Several operators, as real processes: one leads by a Lease, and only that one writes."""

import asyncio
import contextlib
import functools
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.operators import PATIENCE_S, Proxy, a_lease, a_run, credentials_of, eventually
from support.processes import Process, wait_for
from trainingrun.cluster.api_client import Connection
from trainingrun.controller import leadership
from trainingrun.controller.leadership import LEASE_S, REQUEST_S, WRITE_S, Leadership

FAIL_OVER_S = 15.0
LEASES = "coordination.k8s.io/v1"


@pytest.fixture
def start(apiserver, namespace, tmp_path):
    started = []
    system = apiserver.new_namespace()
    apiserver.create(a_lease(system))

    def launch(kubeconfig: Path = apiserver.kubeconfig, **settings: str) -> Process:
        fixed = {"NAMESPACES": namespace, "OPERATOR_NAMESPACE": system, **settings}
        log = tmp_path / f"log-{len(started)}.json"
        started.append(Process(kubeconfig, log, **fixed))
        return started[-1]

    def begin(*arguments: Path, **settings: str) -> Process:
        process = launch(*arguments, **settings)
        wait_for(lambda: process.get("/readyz")[0] == 200)
        return process

    def two() -> list[Process]:
        """Two at the same time: the one that leads, and the other."""
        both = [launch(), launch()]
        wait_for(lambda: all(one.get("/readyz")[0] == 200 for one in both))
        wait_for(lambda: any(map(leads, both)))
        return sorted(both, key=leads, reverse=True)

    begin.two = two
    yield begin
    for one in started:
        one.end()


def leads(operator: Process) -> bool:
    return "trainingrun_operator_leader 1.0" in operator.metrics()


def writes(operator: Process) -> float:
    """Everything that it has sent to change something."""
    return _writes_in(operator.metrics())


def _writes_in(metrics: str) -> float:
    lines = re.findall(
        r'^trainingrun_api_requests_total\{code="\w+",method="(\w+)"\} ([0-9.e+]+)$',
        metrics,
        re.MULTILINE,
    )
    return sum(float(number) for method, number in lines if method not in ("GET", "WATCH"))


def writes_nothing_more(operator: Process) -> None:
    """Waits for two reconciles in a row without a write: the first may have written before."""
    first_seen: dict[float, float] = {}

    def quiet() -> bool:
        metrics = operator.metrics()
        found = re.search(r"^trainingrun_reconcile_seconds_count (\S+)$", metrics, re.MULTILINE)
        reconciles = float(found[1]) if found else 0.0
        return reconciles >= first_seen.setdefault(_writes_in(metrics), reconciles) + 2

    wait_for(quiet)


def begins(apiserver, namespace, status, name: str) -> None:
    """A new run gets its first attempt: somebody leads."""
    apiserver.create(a_run(namespace, name))
    wait_for(lambda: status(name).get("attempt") == 1)


def test_of_two_operators_one_leads_until_it_is_asked_to_go_and_gives_the_lease_back_at_once(
    apiserver, namespace, start, status
):
    first, second = start.two()
    begins(apiserver, namespace, status, "digits")
    writes_nothing_more(first)  # a status is not rewritten for ever
    assert [leads(first), leads(second)] == [True, False]
    assert writes(second) == 0
    assert "trainingrun_queue_depth 0.0" in second.metrics(), "what it has seen waits for nobody"
    assert second.get("/readyz")[0] == 200, "a rollout waits for it otherwise"

    began = time.monotonic()
    first.process.send_signal(signal.SIGTERM)
    wait_for(lambda: leads(second))
    took = time.monotonic() - began
    assert first.process.wait(timeout=30) == 0
    assert took < LEASE_S - 3, f"{took:.1f} s: the Lease was not given back"
    begins(apiserver, namespace, status, "after")


def test_a_stopped_leader_that_wakes_up_writes_nothing_more_until_it_replaces_one_that_is_killed(
    apiserver, namespace, start, status
):
    first, second = start.two()
    begins(apiserver, namespace, status, "before")
    wait_for(lambda: not first.busy())
    before = writes(first)
    os.kill(first.process.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    begins(apiserver, namespace, status, "after")
    assert time.monotonic() - stopped <= FAIL_OVER_S
    # News that the first one will find when it wakes up, and would act upon as a leader.
    begins(apiserver, namespace, status, "later")
    os.kill(first.process.pid, signal.SIGCONT)
    wait_for(lambda: "standing by again" in first.log.read_text())
    assert writes(first) == before
    assert [leads(first), leads(second)] == [False, True]
    assert first.process.poll() is None

    second.process.kill()
    killed = time.monotonic()
    begins(apiserver, namespace, status, "again")
    took = time.monotonic() - killed
    assert leads(first)
    assert took <= FAIL_OVER_S, f"{took:.1f} s"
    # Not at once either: the Lease has to run out, or two might have led.
    assert took >= LEASE_S / 2


def test_a_deadline_that_passes_while_the_only_operator_is_stopped_is_not_missed(
    apiserver, namespace, start, status
):
    """Its timer is due as it wakes up, when it may not write yet."""
    operator = start()
    wait_for(lambda: leads(operator))
    apiserver.create(a_run(namespace, activeDeadlineSeconds=WRITE_S))
    wait_for(lambda: status().get("attempt") == 1)
    wait_for(lambda: not operator.busy())
    os.kill(operator.process.pid, signal.SIGSTOP)
    time.sleep(WRITE_S + 2)
    os.kill(operator.process.pid, signal.SIGCONT)
    wait_for(lambda: status().get("phase") == "Failed", seconds=30)
    assert operator.process.poll() is None


@contextlib.contextmanager
def a_proxy(port: int):
    """A `Proxy` in a thread of its own, with calls that block; yields (its port, up, down)."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def do(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(PATIENCE_S)

    proxy = Proxy(port)
    do(proxy.up())
    try:
        yield proxy.port, lambda: do(proxy.up()), lambda: do(proxy.down())
    finally:
        do(proxy.down())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_leader_without_an_api_server_stands_by_again_and_comes_back(
    apiserver, namespace, start, status, tmp_path
):
    with a_proxy(int(apiserver.url.rsplit(":", 1)[1])) as (port, up, down):
        config = json.loads(apiserver.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        kubeconfig = tmp_path / "through-the-proxy"
        kubeconfig.write_text(json.dumps(config))
        first, second = start(kubeconfig), start()
        wait_for(lambda: leads(first))
        begins(apiserver, namespace, status, "before")
        wait_for(lambda: not first.busy())
        before = writes(first)
        down()
        cut = time.monotonic()
        wait_for(lambda: not leads(first))
        assert time.monotonic() - cut < LEASE_S, "before anybody else could lead"
        begins(apiserver, namespace, status, "after")
        assert time.monotonic() - cut <= FAIL_OVER_S
        up()
        wait_for(lambda: "standing by again" in first.log.read_text())
        second.process.kill()
        begins(apiserver, namespace, status, "again")
        assert leads(first)
        assert writes(first) > before


def test_without_the_right_to_the_lease_an_operator_says_so_and_changes_nothing(
    apiserver, namespace, start, status
):
    """A namespace that is not there answers like a missing right: the Lease cannot be made."""
    operator = start(OPERATOR_NAMESPACE="nowhere")
    apiserver.create(a_run(namespace))
    wait_for(lambda: "without it this operator only stands by" in operator.log.read_text())
    assert status() == {"observedGeneration": -1}
    assert writes(operator) == 0
    assert not leads(operator)
    assert operator.get("/healthz")[0] == 200, "a restart would not help"


class JumpingClock:
    """The wall clock, which somebody sets while the election runs."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def text(self) -> str:
        return datetime.fromtimestamp(time.time() + self.ahead_s, UTC).isoformat()[:26] + "Z"


@pytest.fixture
def clock(monkeypatch):
    found = JumpingClock()
    monkeypatch.setattr(leadership, "_wall_clock", found.text)
    return found


class Candidates:
    """Two in this process, of which the first leads at the beginning."""

    def __init__(self, credentials, system: str, tries: Counter[str]):
        self.terms: list[Leadership] = []
        self.overlaps = 0
        self._tries = tries
        self.both = [
            Leadership(
                Connection(credentials, timeout_s=REQUEST_S),
                system,
                "lease",
                f"{system}-{number}",
            )
            for number in range(2)
        ]
        self.lease = self.both[0]._path

    def leads(self) -> list[bool]:
        return [one.leads for one in self.both]

    async def all_tried(self) -> None:
        """Twice from begin to end: the first of three may have been underway."""
        before = {one._identity: self._tries[one._identity] for one in self.both}
        await eventually(lambda: all(self._tries[name] >= before[name] + 3 for name in before))

    async def changed(self) -> None:
        """Nobody leads, then one does."""
        await eventually(lambda: not any(self.leads()))
        await eventually(lambda: any(self.leads()))

    async def lead(self, candidate: Leadership) -> None:
        self.terms.append(candidate)
        await asyncio.Event().wait()

    async def watch(self) -> None:
        """Counts the moments at which both may write."""
        while True:
            self.overlaps += all(self.leads())
            await asyncio.sleep(0.002)


@pytest.fixture
def counted(monkeypatch):
    """The tries of each candidate, by its identity; there are more of them than elsewhere."""
    monkeypatch.setattr(leadership, "RETRY_S", 0.5)
    tries: Counter[str] = Counter()
    real = Leadership._try

    async def count(candidate) -> None:
        await real(candidate)
        tries[candidate._identity] += 1

    monkeypatch.setattr(Leadership, "_try", count)
    return tries


@contextlib.asynccontextmanager
async def two_candidates(apiserver, tries: Counter[str]):
    """They may never both write."""
    system = apiserver.new_namespace()
    apiserver.create(a_lease(system, "lease"))
    found = Candidates(credentials_of(apiserver), system, tries)
    tasks = [asyncio.create_task(found.watch())]
    try:
        for candidate in found.both:
            tasks.append(
                asyncio.create_task(candidate.run(functools.partial(found.lead, candidate)))
            )
            await eventually(lambda: found.both[0].leads)
        await found.all_tried()  # the second has seen whose it is
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for candidate in found.both:
            await candidate.close()
    assert found.overlaps == 0


async def test_a_wall_clock_that_jumps_takes_no_lease_from_a_leader_that_lives(
    apiserver, counted, clock
):
    async with two_candidates(apiserver, counted) as candidates:
        for clock.ahead_s in (86_400.0, -86_400.0):
            await candidates.all_tried()
            assert candidates.leads() == [True, False]
        assert candidates.terms == [candidates.both[0]]


async def test_whatever_somebody_does_to_the_lease_there_is_no_second_leader(apiserver, counted):
    """Whoever leads may write for seconds more, until it reads what has become of its Lease."""

    async def deleted(times: int) -> None:
        async with two_candidates(apiserver, counted) as candidates:
            for _ in range(times):
                began = time.monotonic()
                apiserver.request("DELETE", candidates.lease)
                await candidates.changed()
                assert time.monotonic() - began > LEASE_S

    async def edited(holder: int | None) -> None:
        async with two_candidates(apiserver, counted) as candidates:
            name = None if holder is None else candidates.both[holder]._identity
            change = {"spec": {"holderIdentity": name}}
            apiserver.request("PATCH", candidates.lease, change, "application/merge-patch+json")
            await candidates.changed()

    await asyncio.gather(deleted(1), deleted(2), edited(None), edited(1))


async def test_a_pause_ends_the_term_and_the_next_one_begins_at_once(apiserver, counted):
    """What was refused meanwhile is done by the next term, which begins with every run."""
    async with two_candidates(apiserver, counted) as candidates:
        first = candidates.both[0]
        time.sleep(WRITE_S + 0.5)  # noqa: ASYNC251 - the process is stopped
        assert candidates.leads() == [False, False]
        await eventually(lambda: candidates.terms == [first, first])
