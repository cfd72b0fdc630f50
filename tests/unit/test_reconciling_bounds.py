"""Whatever training code, KubeRay or a webhook says: the status stays far below etcd's limit."""

import json
from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_head, a_node, a_pod, a_progress, a_ray_cluster, a_ray_job, unix
from support.reconciled import a_polled_run, a_training_run, reconcile, then
from trainingrun.reconciling import Observed, Plan
from trainingrun.reconciling.findings import MOST_EVENTS
from trainingrun.reconciling.losses.counting import MOST_COUNTED

ENDLESS = "no " * 500_000
ETCD_BYTES = 1_500_000


def size(plan: Plan) -> int:
    return len(json.dumps(plan.status.to_dict()))


@pytest.fixture
def training() -> Observed:
    return a_polled_run()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {
                "progress": a_progress(
                    state="Failed", failure={"kind": "Storage", "message": ENDLESS}
                )
            },
            id="failure",
        ),
        pytest.param(
            {"progress": a_progress(metrics={f"{n}{ENDLESS}": ENDLESS for n in range(60)})},
            id="metrics",
        ),
        pytest.param({"progress": a_progress(metrics={"n": 10**5000})}, id="large number"),
        pytest.param(
            {"progress": a_progress(checkpoint={"uri": ENDLESS, "step": 1, "time": 1e300})},
            id="checkpoint",
        ),
        pytest.param(
            {"progress": a_progress(storage_error=ENDLESS, step_time=-1e300)}, id="storage error"
        ),
        pytest.param({"progress": a_progress(standstill=ENDLESS)}, id="standstill"),
        pytest.param(
            {
                "progress": a_progress(
                    warnings=[ENDLESS] * 50,
                    slowest_rank={
                        "rank": 1,
                        "node": ENDLESS,
                        "own_seconds": 1e300,
                        "median_seconds": 0,
                    },
                    memory={"rank": 1, "node": ENDLESS, "used_bytes": 2**80},
                )
            },
            id="warnings",
        ),
        pytest.param(
            {
                "progress": a_progress(
                    ranks=[{"rank": n, "node": ENDLESS, "pod": ENDLESS} for n in range(2000)]
                )
            },
            id="ranks",
        ),
        pytest.param(
            {
                "progress": a_progress(
                    state="Succeeded", result={"checkpoint_uri": ENDLESS, "metrics": {"x": ENDLESS}}
                )
            },
            id="result",
        ),
        pytest.param(
            {"ray_jobs": (a_ray_job(deployment="ValidationFailed", message=ENDLESS),)},
            id="RayJob refused",
        ),
        pytest.param(
            {"ray_jobs": (a_ray_job(status="FAILED", message=ENDLESS),), "pods": ()},
            id="RayJob failed",
        ),
        pytest.param({"ray_clusters": (a_ray_cluster(failure=ENDLESS),)}, id="RayCluster"),
        pytest.param({"pods": (a_head(waiting=("CreateContainerError", ENDLESS)),)}, id="waiting"),
        pytest.param(
            {"pods": (a_head(exit_code=1, termination_message=ENDLESS.replace(" ", "")),)},
            id="termination message",
        ),
        pytest.param({"pods": (a_pod(unschedulable=ENDLESS),)}, id="unschedulable"),
        pytest.param({"invalid": ENDLESS}, id="invalid"),
        pytest.param({"stale": {"Pod": ENDLESS}}, id="stale"),
        pytest.param(
            {"progress": None, "progress_failing_s": 99.0, "progress_error": ENDLESS},
            id="failing polls",
        ),
    ],
)
def test_every_text_in_the_status_and_in_events_is_cut(
    training: Observed, changes: dict[str, Any]
) -> None:
    plan = reconcile(replace(training, **changes), 100)
    assert size(plan) < 30_000
    assert all(len(event.message) <= 1000 for event in plan.events)
    assert reconcile(then(replace(training, **changes), 100), 101).status


def test_many_records_are_reported_in_a_few_events(training: Observed) -> None:
    restored = {"kind": "Restored", "time": unix(50), "step": 5}
    reported = [{"number": number, **restored} for number in range(1, 20_001)]
    plan = reconcile(replace(training, progress=a_progress(records=reported)))
    assert len(plan.events) == MOST_EVENTS + 1
    assert plan.events[0].reason == "ManyEvents"
    assert plan.events[0].message.endswith(" Restored")
    assert plan.status.seen["records"] == 20_000
    assert reconcile(then(replace(training, progress=a_progress(records=reported)))).events == ()


def test_losses_that_a_driver_invents_do_not_fill_the_status(training: Observed) -> None:
    seen = training
    for poll in range(5):
        reported = [
            {
                "number": poll * 100 + n,
                "kind": "WorkerLost",
                "time": unix(50),
                "message": ENDLESS,
                "pod": f"{poll}-{n}{'y' * 300}",
                "node": f"node-{poll}-{n}{'y' * 300}",
            }
            for n in range(1, 101)
        ]
        seen = then(replace(seen, progress=a_progress(records=reported)), 70 + poll)
    settled = reconcile(seen, 80)
    assert len(settled.status.seen["counted"]) <= MOST_COUNTED
    assert size(settled) < 96_000
    assert settled.status.disruptions.worker_failures == 500, "each is counted once"


def test_a_thousand_workers_lost_at_once_leave_a_status_that_can_be_written() -> None:
    names = [f"digits-1-abcde-workers-worker-{n:05}" for n in range(1000)]
    lost = [a_node(f"ip-10-0-{n}.ec2.internal", exists=False) for n in range(1000)]
    begun = a_training_run(workers={"count": 1000})
    workers = [
        a_pod(name, node=node.name, uid=f"1a2b3c4d-0000-4000-8000-{n:012}")
        for n, (name, node) in enumerate(zip(names, lost, strict=True))
    ]
    seen = replace(begun, pods=(a_head(), *workers))
    seen = replace(then(seen, 40), nodes={node.name: node for node in lost})
    plan = reconcile(seen, 50)
    assert plan.status.disruptions.node_losses == 1000
    assert size(plan) < ETCD_BYTES / 2
    assert len(plan.events) <= MOST_EVENTS + 1
