"""The operator's metrics of each run: what is shown, of which runs, and how many series that is."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from support.builders import an_object
from support.ports import free_ports
from trainingrun.cluster.parsing import parse
from trainingrun.cluster.run_stores import Stores
from trainingrun.controller import handlers
from trainingrun.controller.operator_metrics import FAILED_S, MOST_SERIES, Metrics

ENDED = "2026-01-01T03:00:00Z"
NOW = 1_767_236_400.0  # 2026-01-01T03:00:00Z
FULL: dict[str, Any] = {
    "phase": "Running",
    "startTime": "2026-01-01T00:00:00Z",
    "conditions": [
        {"type": "Accepted", "status": "True", "reason": "Valid"},
        {"type": "Waiting", "status": "True", "reason": "Hang"},
        {"type": "Stalled", "status": "True", "reason": "SecretMissing"},
    ],
    "progress": {"step": 40, "checkpointIntervalSeconds": 60},
    "checkpoint": {"uri": "s3://x", "step": 30, "time": "2026-01-01T02:00:00Z"},
    "goodput": {"seconds": 100.5, "productiveSeconds": 50.25},
    "disruptions": {"preemptions": 2, "hangs": 1, "history": [{"number": 1}]},
    "hang": {"time": "2026-01-01T02:30:00Z"},
    "cost": {"atLeast": 7.5},
    "seen": {"otherLosses": 4},
}
BUDGET = {"budget": {"amount": 10}}


def a_run(name: str, version: int = 1, spec: dict | None = None, **status: Any) -> dict:
    return an_object(name, version, uid=name, spec=spec or {}, status=status)


def exposed(*runs: dict, now: float = NOW) -> dict[tuple[str, ...], float]:
    """Values of the series of single runs, by name and labels but the namespace, which is ns."""
    stores = Stores()
    for run in runs:
        stores.runs.store.update(run)
    metrics = Metrics(lambda: stores.runs.store.summaries, unix_time=lambda: now)
    found = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            if "run" in sample.labels:
                labels = dict(sample.labels)
                assert labels.pop("namespace") == "ns"
                found[(sample.name.removeprefix("trainingrun_run_"), *labels.values())] = (
                    sample.value
                )
    return found


def test_of_a_run_that_has_not_ended_all_that_is_known_is_shown():
    assert exposed(a_run("a", spec=BUDGET, **FULL)) == {
        ("phase", "a", "Running"): 1,
        ("condition", "a", "Waiting", "Hang"): 1,
        ("condition", "a", "Stalled", "SecretMissing"): 1,
        ("start_time_seconds", "a"): NOW - 3 * 3600,
        ("step", "a"): 40,
        ("checkpoint_time_seconds", "a"): NOW - 3600,
        ("checkpoint_interval_seconds", "a"): 60,
        ("seconds", "a"): 100.5,
        ("productive_seconds", "a"): 50.25,
        ("losses", "a"): 7,
        ("hang_time_seconds", "a"): NOW - 1800,
        ("budget_ratio", "a"): 0.75,
    }
    assert len(exposed(a_run("a", spec=BUDGET, **FULL))) == MOST_SERIES


def test_what_is_not_known_is_left_out_and_not_0():
    assert exposed(a_run("new")) == {("phase", "new", "Pending"): 1, ("losses", "new"): 0}
    waits = {"type": "Waiting", "status": "False", "reason": "NothingIsMissing"}
    odd = a_run("odd", conditions=[waits], startTime="yesterday", cost={"atLeast": 1.0})
    assert exposed(odd) == {("phase", "odd", "Pending"): 1, ("losses", "odd"): 0}


@pytest.mark.parametrize(
    ("own", "default", "maxima", "share"),
    [
        pytest.param(10, None, [], 0.75, id="its own"),
        pytest.param(None, 30, [None], 0.25, id="of the defaults"),
        pytest.param(10, 30, [None, None], 0.75, id="its own before that of the defaults"),
        pytest.param(100, None, [30, 15], 0.5, id="an own one that was raised beyond a limit"),
        pytest.param(None, 30, [None, 15], 0.5, id="one of the defaults beyond a limit"),
        pytest.param(None, None, [15], 0.5, id="the limit of a run that has none"),
        pytest.param(None, None, [None], None, id="none at all"),
        pytest.param(None, None, [0], None, id="a limit of 0, of which there are no shares"),
    ],
)
def test_what_a_run_has_cost_is_a_share_of_the_budget_that_is_enforced(own, default, maxima, share):
    def with_budget(amount: float | None) -> dict:
        return {} if amount is None else {"budget": {"amount": amount}}

    limits = [{} if most is None else {"maximum": {"budgetAmount": most}} for most in maxima]
    whose = {"kind": "TrainingDefaults", "name": "default", "resourceVersion": "1"}
    defaults = {"sources": [whose | limit for limit in limits], "spec": with_budget(default)}
    run = a_run("a", spec=with_budget(own), defaults=defaults, cost={"atLeast": 7.5})
    assert exposed(run).get(("budget_ratio", "a")) == share
    enforced = parse(run)[0].spec.budget
    amount = enforced.amount if enforced else 0
    assert (7.5 / amount if amount else None) == share, "the reconciler holds it to another amount"


@pytest.mark.parametrize(
    ("phase", "age_s", "shown"),
    [
        pytest.param("Succeeded", 0, False, id="succeeded"),
        pytest.param("Failed", 0, True, id="failed just now"),
        pytest.param("Failed", FAILED_S + 1, False, id="failed an hour ago"),
    ],
)
def test_of_a_run_that_has_ended_the_phase_is_shown_for_an_hour_if_it_has_failed(
    phase, age_s, shown
):
    run = a_run("a", **{**FULL, "phase": phase, "completionTime": ENDED})
    assert exposed(run, now=NOW + age_s) == ({("phase", "a", phase): 1} if shown else {})


def test_a_failure_that_was_seen_late_is_shown_for_an_hour_from_then_on():
    """Else no alert would name a run that fails while its operator is away."""
    attempts = [{"number": 1, "endTime": "2026-01-01T08:00:00Z"}]
    run = a_run("a", phase="Failed", completionTime=ENDED, attempts=attempts)
    assert exposed(run, now=NOW + 5 * 3600 + FAILED_S) == {("phase", "a", "Failed"): 1}
    assert exposed(run, now=NOW + 5 * 3600 + FAILED_S + 1) == {}


@contextlib.asynccontextmanager
async def serving(metrics: Metrics) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Serves them; yields a scrape over HTTP."""
    ready, port = free_ports(2)
    operator: Any = SimpleNamespace(
        metrics=metrics,
        ready=True,
        settings=SimpleNamespace(operator=SimpleNamespace(ready_port=ready, metrics_port=port)),
    )
    async with contextlib.AsyncExitStack() as closing:
        for server in await handlers.serve(operator):
            closing.push_async_callback(server.cleanup)
        session = await closing.enter_async_context(aiohttp.ClientSession())

        async def scraped() -> str:
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                assert answer.status == 200
                return await answer.text()

        yield scraped


async def test_many_scrapes_at_once_are_answered_by_one_and_later_ones_anew():
    """Whoever reaches the port takes no more than a sixth of a core by them."""
    made = 0

    def summaries() -> Counter[Any]:
        nonlocal made
        made += 1
        time.sleep(0.2)
        return Counter()

    async with serving(Metrics(summaries)) as scrape, asyncio.timeout(60):
        begun = time.monotonic()
        texts = await asyncio.gather(*(scrape() for _ in range(50)))
        assert made == 1
        assert len({*texts}) == 1
        while made == 1:
            await asyncio.sleep(0.05)
            await scrape()
        assert time.monotonic() - begun >= 0.2 * handlers.KEPT


async def test_10000_runs_have_so_many_series_while_they_have_not_ended_and_none_afterwards(
    monkeypatch,
):
    """Scraped over HTTP, while events change the runs: no reconcile waits for a scrape."""
    stores = Stores()
    for number in range(10_000):
        stores.runs.store.update(a_run(f"run-{number}", number + 1, BUDGET, **FULL))
    metrics = Metrics(lambda: stores.runs.store.summaries)
    turns = 0

    async def events() -> None:
        nonlocal turns
        while True:
            turns += 1
            stores.runs.store.update(a_run("run-0", 20_000 + turns, BUDGET, **FULL))
            if turns % 2:
                stores.runs.store.update(a_run(f"new-{turns}", 20_000 + turns))
            else:
                stores.runs.store.forget("ns", f"new-{turns - 1}", f"new-{turns - 1}")
            await asyncio.sleep(0.001)

    monkeypatch.setattr(handlers, "KEPT", 0)
    async with serving(metrics) as scrape:

        async def scraped() -> Counter[str]:
            of_runs = Counter()
            for line in (await scrape()).splitlines():
                if not line.startswith("#") and 'run="run-' in line:
                    of_runs[line[: line.index("{")]] += 1
            return of_runs

        changing = asyncio.create_task(events())
        found = await scraped()
        changing.cancel()
        assert found.total() == MOST_SERIES * 10_000
        assert turns > 20, "the event loop waited for the scrape"
        for number in range(10_000):
            ended = {**FULL, "phase": "Succeeded", "completionTime": ENDED}
            stores.runs.store.update(a_run(f"run-{number}", 10**6 + number, BUDGET, **ended))
        assert (await scraped()).total() == 0
    labels = {"namespace": "ns", "phase": "Succeeded"}
    assert metrics.registry.get_sample_value("trainingrun_runs", labels) == 10_000
