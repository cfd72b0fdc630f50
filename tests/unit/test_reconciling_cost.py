"""What a reconcile costs grows with the run and no faster; counted in calls, not in seconds.

The times themselves are measured by tests/benchmarks/plan_cost.py.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from support.builders import a_progress, unix
from support.large_runs import a_large_run, all_nodes_lost, planned, versioned, written
from trainingrun.reconciling import Observed

FEW, MANY = 250, 1000


def calls(call: Callable[[], object]) -> int:
    """Calls of Python and C functions while `call` runs."""
    counted = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    former = sys.getprofile()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(former)
    return counted


def all_out_of_memory(steady: Observed) -> Observed:
    """Every worker's container is over its limit."""
    ending = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-21T12:01:01Z"}
    head, *workers = steady.pods
    dead = [
        {**pod, "status": {"phase": "Failed", "containerStatuses": [
            {"name": "ray-worker", "state": {"terminated": ending}}
        ]}}
        for pod in workers
    ]  # fmt: skip
    changed = [{**pod, "metadata": {**pod["metadata"], "resourceVersion": "2"}} for pod in dead]
    return replace(steady, pods=(head, *changed))


def all_recorded_first(steady: Observed) -> Observed:
    """The driver tells of a hundred of them, and the pods show all of them."""
    reported = [
        {"number": n, "kind": "WorkerLost", "time": unix(61), "pod": f"worker-{n}"}
        for n in range(1, 101)
    ]
    recorded = written(replace(steady, progress=a_progress(records=reported)), 62)
    return all_out_of_memory(recorded)


def headless(steady: Observed) -> Observed:
    """The head is gone, and every worker is replaced with it."""
    return replace(steady, pods=steady.pods[1:])


def terminating(steady: Observed) -> Observed:
    """Every pod is terminating."""
    gone = {"deletionTimestamp": "2026-11-21T12:01:35Z", "deletionGracePeriodSeconds": 35}
    return replace(
        steady,
        pods=tuple(
            {**pod, "metadata": {**pod["metadata"], **gone, "resourceVersion": "2"}}
            for pod in steady.pods
        ),
    )


def afterwards(steady: Observed) -> Observed:
    """All of it was counted, and nothing has changed since."""
    return written(all_nodes_lost(steady), 62)


@pytest.fixture(scope="module")
def runs() -> dict[int, Observed]:
    return {workers: a_large_run(workers) for workers in (FEW, MANY)}


@pytest.mark.parametrize(
    "story",
    [
        all_nodes_lost,
        all_out_of_memory,
        all_recorded_first,
        headless,
        terminating,
        afterwards,
        lambda steady: steady,
    ],
    ids=["nodes", "memory", "records", "head", "leaving", "afterwards", "nothing"],
)
def test_four_times_the_workers_cost_at_most_four_times_as_much(
    runs: dict[int, Observed], story: Callable[[Observed], Observed]
) -> None:
    cost = {}
    for workers, steady in runs.items():
        seen = story(steady)
        planned(seen, 64)
        cost[workers] = calls(lambda seen=seen: planned(seen, 64))  # type: ignore[misc]
    assert cost[MANY] < cost[FEW] * 4.2, cost


def test_a_pod_that_has_not_changed_costs_a_few_calls(runs: dict[int, Observed]) -> None:
    cost = {
        workers: calls(lambda steady=steady: planned(steady, 64))  # type: ignore[misc]
        for workers, steady in runs.items()
    }
    assert (cost[MANY] - cost[FEW]) / (MANY - FEW) <= 12, cost


def test_a_lost_node_costs_a_bounded_number_of_calls(runs: dict[int, Observed]) -> None:
    cost = {
        workers: calls(lambda steady=steady: planned(all_nodes_lost(steady), 64))  # type: ignore[misc]
        for workers, steady in runs.items()
    }
    assert (cost[MANY] - cost[FEW]) / (MANY - FEW) <= 150, cost


def test_a_pod_that_changed_is_read_anew(runs: dict[int, Observed]) -> None:
    steady = runs[FEW]
    changed = versioned(terminating(steady).pods[5])
    changed = {**changed, "metadata": {**changed["metadata"], "resourceVersion": "7"}}
    seen = replace(steady, pods=(*steady.pods[:5], changed, *steady.pods[6:]))
    assert planned(seen, 64).status.disruptions.preemptions == 1
