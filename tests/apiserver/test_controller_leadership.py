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
from pathlib import Path

import pytest
from kubernetes.aio.leaderelection import leaderelection as library
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from support.operators import PATIENCE_S, Proxy, a_run, configuration_of, eventually
from support.processes import Process, wait_for
from trainingrun.controller.leadership import LEASE_S, Leadership

FAIL_OVER_S = 15.0
LEASES = "coordination.k8s.io/v1"


@pytest.fixture
def start(apiserver, namespace, tmp_path):
    started = []
    system = apiserver.new_namespace()

    def begin(kubeconfig: Path = apiserver.kubeconfig, **settings: str) -> Process:
        fixed = {"NAMESPACES": namespace, "OPERATOR_NAMESPACE": system, **settings}
        log = tmp_path / f"log-{len(started)}.json"
        started.append(Process(kubeconfig, log, **fixed))
        wait_for(lambda: started[-1].get("/readyz")[0] == 200)
        return started[-1]

    begin.system = system
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


def test_of_two_operators_one_leads_and_a_status_is_not_rewritten_for_ever(
    apiserver, namespace, start, status
):
    first, second = start(), start()
    wait_for(lambda: leads(first))
    begins(apiserver, namespace, status, "digits")
    writes_nothing_more(first)
    assert [leads(first), leads(second)] == [True, False]
    assert writes(second) == 0
    assert second.get("/readyz")[0] == 200, "a rollout waits for it otherwise"


def test_a_killed_leader_is_replaced_within_15_seconds(apiserver, namespace, start, status):
    first, second = start(), start()
    wait_for(lambda: leads(first))
    begins(apiserver, namespace, status, "before")
    first.process.kill()
    killed = time.monotonic()
    begins(apiserver, namespace, status, "after")
    took = time.monotonic() - killed
    assert leads(second)
    assert took <= FAIL_OVER_S, f"{took:.1f} s"
    # Not at once either: the Lease has to run out, or two might have led.
    assert took >= LEASE_S / 2


def test_a_leader_that_is_asked_to_go_gives_the_lease_back_at_once(
    apiserver, namespace, start, status
):
    first, second = start(), start()
    wait_for(lambda: leads(first))
    began = time.monotonic()
    first.process.send_signal(signal.SIGTERM)
    wait_for(lambda: leads(second))
    took = time.monotonic() - began
    assert first.process.wait(timeout=30) == 0
    assert took < LEASE_S - 3, f"{took:.1f} s: the Lease was not given back"
    begins(apiserver, namespace, status, "digits")


def test_a_stopped_leader_that_wakes_up_writes_nothing_more(apiserver, namespace, start, status):
    first, second = start(), start()
    wait_for(lambda: leads(first))
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
    assert status() == {}
    assert writes(operator) == 0
    assert not leads(operator)
    assert operator.get("/healthz")[0] == 200, "a restart would not help"


class JumpingClock:
    """The library's wall clock, which somebody sets while it runs."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def time(self) -> float:
        return time.time() + self.ahead_s


@pytest.fixture
def clock(monkeypatch):
    found = JumpingClock()
    monkeypatch.setattr(library, "time", found)
    return found


@contextlib.asynccontextmanager
async def two_candidates(apiserver, monkeypatch):
    """Of "first", which leads, and "second": them, and a wait until each has tried twice.

    None but the first may have led at the end.
    """
    terms: list[str] = []
    tries: Counter[str] = Counter()
    real = library.LeaderElection.try_acquire_or_renew

    async def counted(election) -> bool:
        succeeded = await real(election)
        tries[election.election_config.lock.identity] += 1
        return succeeded

    monkeypatch.setattr(library.LeaderElection, "try_acquire_or_renew", counted)

    async def all_tried() -> None:
        """Twice from begin to end: the first of three may have been underway."""
        before = tries.copy()
        await eventually(lambda: all(tries[name] >= before[name] + 3 for name in candidates))

    async def lead(name: str) -> None:
        terms.append(name)
        await asyncio.Event().wait()

    configuration, system = await configuration_of(apiserver), apiserver.new_namespace()
    candidates = {
        name: Leadership(configuration, system, "lease", name) for name in ("first", "second")
    }
    tasks = []
    try:
        for name, candidate in candidates.items():
            tasks.append(asyncio.create_task(candidate.run(functools.partial(lead, name))))
            await eventually(lambda: candidates["first"].leads)
        await all_tried()  # the second has seen whose it is
        yield candidates, all_tried
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for candidate in candidates.values():
            await candidate.close()
    assert terms == ["first"] * len(terms)


async def test_a_wall_clock_that_jumps_takes_no_lease_from_a_leader_that_lives(
    apiserver, monkeypatch, clock
):
    async with two_candidates(apiserver, monkeypatch) as (candidates, all_tried):
        for clock.ahead_s in (86_400.0, -86_400.0):
            await all_tried()
            assert [one.leads for one in candidates.values()] == [True, False]


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0], ids=["forward", "back"])
async def test_nor_does_one_that_jumps_while_the_lease_is_read(
    apiserver, monkeypatch, clock, jump_s
):
    async with two_candidates(apiserver, monkeypatch) as (candidates, all_tried):
        real = LeaseLock.get

        async def read(lease, name, namespace):
            found = await real(lease, name, namespace)
            clock.ahead_s += jump_s
            return found

        monkeypatch.setattr(LeaseLock, "get", read)
        await all_tried()
        assert [one.leads for one in candidates.values()] == [True, False]
