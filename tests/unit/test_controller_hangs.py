"""A reconcile or a watch that hangs makes the liveness probe fail, and a reconcile that only has
much to do does not look like one.
"""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from support.builders import T0, a_run
from support.reconciled import reconcile
from trainingrun.cluster.credentials import Credentials
from trainingrun.controller import operator as module
from trainingrun.controller.operator import Operator
from trainingrun.controller.reconcile import Reconciler
from trainingrun.controller.settings import OperatorSettings, Settings
from trainingrun.reconciling import Observed, ReconcileSettings
from trainingrun.reconciling.model import Action, Apply, Delete, Plan, Ref
from trainingrun.rendering import RenderSettings

KEY = ("team-a", "digits")


class Clock:
    """Seconds that the test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def operator(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Operator]:
    """One that has just begun, by the test's clock, and whose reconciles may take a minute."""
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    settings = Settings(OperatorSettings(stuck_s=60.0))
    found = Operator(settings, Credentials("http://127.0.0.1:9"))
    for watch in found.cluster.watches.all():
        watch.alive_at = clock.now
    found.queue = found._new_queue()
    yield found
    found.queue.close()
    await found.leadership.close()
    await found._connection.close()


class HangingReconciler:
    """Its reconciles end when the test lets them."""

    def __init__(self) -> None:
        self.begun, self.released = asyncio.Event(), asyncio.Event()

    async def reconcile(self, _: tuple[str, str]) -> None:
        self.begun.set()
        await self.released.wait()


@pytest.mark.parametrize(
    ("seconds", "error"),
    [(60.0, None), (61.0, "the reconcile of team-a/digits takes 61 s")],
)
async def test_a_reconcile_that_takes_longer_than_stuck_s_fails_the_liveness_probe_until_it_ends(
    operator: Operator, clock: Clock, seconds: float, error: str | None
) -> None:
    hangs: Any = HangingReconciler()
    working = asyncio.create_task(operator._work(hangs))
    operator.queue.add(KEY)
    await hangs.begun.wait()
    assert operator.liveness_error is None
    clock.now += seconds
    for watch in operator.cluster.watches.all():
        watch.alive_at = clock.now
    assert operator.liveness_error == error
    hangs.released.set()
    async with asyncio.timeout(30):
        while operator._working_since:  # noqa: ASYNC110 - a worker tells nobody
            await asyncio.sleep(0)
    assert operator.liveness_error is None
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


@pytest.mark.parametrize(
    ("seconds", "error"), [(900.0, None), (901.0, "a watch did nothing for 901 s")]
)
async def test_one_watch_that_did_nothing_for_a_quarter_of_an_hour_fails_the_liveness_probe(
    operator: Operator, clock: Clock, seconds: float, error: str | None
) -> None:
    silent, *others = operator.cluster.watches.all()
    clock.now += seconds
    for watch in others:
        watch.alive_at = clock.now
    assert operator.liveness_error == error
    silent.alive_at = clock.now
    assert operator.liveness_error is None


class SlowCluster:
    """An API server that takes 8 s for each request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.done: list[str] = []

    async def delete(self, ref: Ref, *_: Any) -> None:
        self._clock.now += 8
        self.done.append(ref.name)

    async def apply(self, manifest: dict[str, Any]) -> None:
        self._clock.now += 8
        self.done.append(manifest["metadata"]["name"])


NAMES = ["a", "b", "c", "d", "e"]
DELETIONS = [Delete(Ref("v1", "Pod", "team-a", name)) for name in NAMES]
CREATIONS = [Apply({"kind": "ConfigMap", "metadata": {"name": name}}) for name in NAMES]


@pytest.mark.parametrize(
    ("actions", "done", "again_in_s"),
    [
        pytest.param(DELETIONS, NAMES[:3], 0.0, id="the rest is planned anew at once"),
        pytest.param(DELETIONS[:3], NAMES[:3], 30.0, id="there is no rest"),
        pytest.param(CREATIONS, NAMES, 30.0, id="an attempt begins as a whole"),
    ],
)
async def test_what_is_left_of_a_plan_after_20_s_waits_for_the_next_reconcile(
    clock: Clock, actions: list[Action], done: list[str], again_in_s: float
) -> None:
    cluster: Any = SlowCluster(clock)
    unused: Any = None
    reconciler = Reconciler(
        cluster,
        unused,
        unused,
        unused,
        RenderSettings(),
        ReconcileSettings(),
        now=lambda: T0,
        clock=clock,
    )
    observed = Observed(a_run())
    plan = Plan(tuple(actions), reconcile(observed).status, requeue_after_s=30.0)
    assert await reconciler._act(KEY, observed, plan) == again_in_s
    assert cluster.done == done
