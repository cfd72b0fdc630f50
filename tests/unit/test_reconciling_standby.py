"""A run with workers.standby: it waits for no standby pod, and loses nothing with one."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import (
    a_head,
    a_node,
    a_pod,
    a_progress,
    a_ray_cluster,
    a_ray_job,
    a_run,
    nodes,
    unix,
)
from support.reconciled import condition, reconcile, then
from trainingrun.reconciling import Observed, Plan
from trainingrun.reconciling.model import Delete, ExcludeNodes, ScaleWorkers
from trainingrun.rendering import RenderSettings, attempt

STANDBY = {"count": 2, "standby": 1}
FULL = "0/3 nodes are available: 3 Insufficient cpu."

HEAD = a_head(ready=True)
FIRST = a_pod("worker-1", node="spot-1", ready=True)
SECOND = a_pod("worker-2", node="spot-2", ready=True)
THIRD = a_pod("worker-3", node="spot-3", ready=True)
NO_NODE = a_pod("worker-3", unschedulable=FULL, unschedulable_at=10)
NODES = nodes(a_node("spot-3"))


def starting(*pods: Any, workers: dict[str, Any] = STANDBY, replicas: int = 3) -> Observed:
    """An attempt whose driver waits for its pods."""
    return then(
        Observed(a_run(workers=workers)),
        0,
        ray_jobs=(a_ray_job(deployment="Initializing"),),
        ray_clusters=(a_ray_cluster(replicas=replicas, version="7"),),
        pods=pods,
        nodes=NODES,
    )


def training(*pods: Any, workers: dict[str, Any] = STANDBY, **document: Any) -> Observed:
    """An attempt that trains, with these pods and this document."""
    document = {"spare_pods": ["worker-3"], **document}
    return replace(
        starting(*pods, workers=workers),
        ray_jobs=(a_ray_job(status="RUNNING", deployment="Running"),),
        progress=a_progress(**document),
        progress_age_s=0.5,
    )


def scaled(plan: Plan) -> list[tuple[int, tuple[str, ...]]]:
    """Worker pods and deleted pods of each ScaleWorkers."""
    return [(a.pods, a.removed) for a in plan.actions if isinstance(a, ScaleWorkers)]


def lost(plan: Plan) -> tuple[int, list[str]]:
    """How many losses are counted, and the reasons in the history."""
    disruptions = plan.status.disruptions
    counted = disruptions.preemptions + disruptions.node_losses + disruptions.worker_failures
    return counted, [loss.reason for loss in disruptions.history]


@pytest.mark.parametrize(
    ("workers", "replicas", "least", "trained"),
    [
        (STANDBY, 3, 2, 2),
        ({"count": 16, "perPod": 8, "standby": 2}, 4, 2, 16),
        ({"count": 4, "minimum": 2, "standby": 1}, 5, 2, 4),
        ({"count": 2}, 2, 2, 2),
    ],
)
def test_standby_pods_are_more_pods_of_the_same_group(
    workers: dict[str, Any], replicas: int, least: int, trained: int
) -> None:
    run = a_run(workers=workers)
    job = attempt(run, 1, RenderSettings())
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (
        replicas,
        least,
        replicas,
    )
    assert run.spec.total_workers == trained


def test_a_start_waits_for_no_standby_pod_without_a_node_and_asks_for_it_afterwards() -> None:
    seen = starting(HEAD, FIRST, SECOND, NO_NODE)
    assert scaled(reconcile(seen, 19)) == []
    assert scaled(reconcile(seen, 20)) == [(2, ("worker-3",))]
    running = (a_ray_job(status="", deployment="Running"),)
    small = starting(HEAD, FIRST, SECOND, replicas=2)
    assert scaled(reconcile(replace(small, ray_jobs=running), 30)) == [(3, ())]


def test_a_start_waits_for_each_pod_that_trains() -> None:
    assert scaled(reconcile(starting(HEAD, FIRST, NO_NODE), 3600)) == []


def test_a_missing_standby_pod_is_said_and_stops_nothing() -> None:
    plan = reconcile(training(HEAD, FIRST, SECOND, NO_NODE, spare_pods=[]), 700)
    assert plan.status.phase == "Running"
    assert condition(plan, "Ready").status == "True"
    assert condition(plan, "Stalled").status == "False"
    waiting = condition(plan, "Waiting")
    assert (waiting.status, waiting.reason) == ("True", "StandbyMissing")
    begin = "All workers train; 0 of 1 standby pods are ready; Pod worker-3 cannot be scheduled: "
    assert waiting.message.startswith(begin)
    broken = a_pod("worker-3", node="spot-3", waiting=("ErrImagePull", "not found"))
    assert condition(
        reconcile(training(HEAD, FIRST, SECOND, broken, spare_pods=[]), 700), "Stalled"
    ).status == "False"  # fmt: skip


def test_the_status_shows_the_pods_that_wait() -> None:
    whole = reconcile(training(HEAD, FIRST, SECOND, THIRD), 70)
    found = whole.status.workers
    assert found is not None
    assert (found.wanted, found.ready, found.training, found.standby) == (2, 2, 2, 1)
    assert condition(whole, "Waiting").status == "False"
    ended = training(HEAD, FIRST, SECOND, THIRD, state="Succeeded", result={"metrics": {}})
    after = reconcile(ended, 70).status.workers
    assert after is not None
    assert (after.ready, after.standby) == (0, 0)


def leaving(name: str, node: str) -> Any:
    """A pod that is being deleted."""
    return a_pod(name, node=node, ready=True, terminating_at=63)


def test_a_standby_pod_that_is_deleted_is_no_loss_also_once_the_training_loses_another() -> None:
    gone = leaving("worker-3", "spot-3")
    seen = then(training(HEAD, FIRST, SECOND, THIRD), 62)
    plan = reconcile(replace(seen, pods=(HEAD, FIRST, SECOND, gone)), 64)
    assert lost(plan) == (0, [])
    assert [event.reason for event in plan.events] == ["StandbyLost"]
    later = then(replace(seen, pods=(HEAD, FIRST, SECOND, gone)), 64)
    assert reconcile(later, 65).events == ()
    recovers = a_progress(
        state="Recovering",
        records=[{"number": 1, "kind": "WorkerLost", "time": unix(66), "step": 12}],
    )
    assert lost(reconcile(replace(later, progress=recovers), 67)) == (1, ["WorkerLost"]), (
        "a record that names no pod is about another one"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"progress_age_s": 60.0},
        {"progress": a_progress(spare_pods=[], state="Recovering")},
        {"progress": a_progress(spare_pods=["worker-2"])},
    ],
    ids=["an old document", "a group begins", "another one waits"],
)
def test_a_pod_counts_as_lost_where_a_rank_may_be_in_it(change: dict[str, Any]) -> None:
    seen = then(training(HEAD, FIRST, SECOND, THIRD), 62)
    gone = leaving("worker-3", "spot-3")
    plan = reconcile(replace(seen, pods=(HEAD, FIRST, SECOND, gone), **change), 64)
    assert lost(plan) == (1, ["Preempted"])


def test_the_loss_of_a_pod_with_a_rank_is_counted_once_though_training_is_elsewhere() -> None:
    gone = leaving("worker-2", "spot-2")
    seen = then(training(HEAD, FIRST, SECOND, THIRD), 62)
    record = {"number": 1, "kind": "Preempted", "time": unix(63), "step": 12, "pod": "worker-2"}
    moved = a_progress(records=[record], spare_pods=[], step=13, step_time=unix(64))
    after = then(replace(seen, pods=(HEAD, FIRST, gone, THIRD), progress=moved), 65)
    assert lost(reconcile(after, 66)) == (1, ["Preempted"])


def test_a_node_with_a_standby_pod_alone_is_left_and_not_counted() -> None:
    dead = nodes(a_node("spot-3", exists=False))
    seen = replace(then(training(HEAD, FIRST, SECOND, THIRD), 62), nodes=dead)
    plan = reconcile(seen, 70)
    assert lost(plan) == (0, [])
    assert [a.ref.name for a in plan.actions if isinstance(a, Delete)] == ["worker-3"]
    assert [a.nodes for a in plan.actions if isinstance(a, ExcludeNodes)] == [("spot-3",)]
    assert [event.reason for event in plan.events] == ["StandbyLost"]
    again = then(seen, 70)
    assert (lost(reconcile(again, 71)), reconcile(again, 71).events) == ((0, []), ())


def test_a_node_that_a_rank_shares_with_a_standby_pod_counts() -> None:
    dead = nodes(a_node("spot-2", exists=False))
    beside = a_pod("worker-3", node="spot-2", ready=True)
    plan = reconcile(replace(training(HEAD, FIRST, SECOND, beside), nodes=dead), 70)
    assert lost(plan) == (1, ["NodeLost"])


def test_accelerators_of_standby_pods_wait() -> None:
    workers = {**STANDBY, "accelerator": {"kind": "nvidia", "count": 4}}
    began = then(starting(HEAD, FIRST, SECOND, THIRD, workers=workers), 10)
    seen = replace(
        began,
        ray_jobs=(a_ray_job(status="RUNNING", deployment="Running"),),
        progress=a_progress(seconds={"productive": 40.0}, spare_pods=["worker-3"]),
        progress_age_s=0.5,
    )
    cost = reconcile(seen, 70).status.cost
    assert cost is not None
    assert (cost.seconds.training, cost.seconds.waiting) == (40 * 8, 50 * 4)
    assert cost.total_seconds == 50 * 12


def test_a_standby_pod_without_a_node_waits_as_a_worker_does() -> None:
    workers = {**STANDBY, "capacity": {"type": "Spot", "fallback": {"afterPendingSeconds": 60}}}
    seen = then(training(HEAD, FIRST, SECOND, NO_NODE, workers=workers, spare_pods=[]), 20)
    capacity = reconcile(seen, 75).status.capacity
    assert capacity is not None
    assert capacity.type == "OnDemand"


def test_a_restarted_operator_shows_a_run_without_its_standby_pod_as_one_that_runs() -> None:
    running = then(training(HEAD, FIRST, SECOND, NO_NODE, spare_pods=[]), 70)
    unread = replace(running, progress=None, progress_age_s=None)
    assert reconcile(unread, 75).status.phase == "Running"
