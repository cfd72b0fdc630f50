"""What is missing counts once the API server confirms it, and for an operator that was away too."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.builders import T0, a_node, a_pod, a_progress, nodes, pods, unix
from support.reconciled import a_polled_run, a_training_run, reconcile, then
from trainingrun.reconciling import Observed, ReconcileSettings, plan
from trainingrun.rendering import RenderSettings

HEAD, ONE, TWO = pods()
TRAINING = a_training_run()
EMPTY: dict[str, Any] = {"ray_jobs": (), "ray_clusters": (), "pods": ()}
DIED = {"number": 1, "kind": "WorkerLost", "time": unix(100), "pod": "worker-1"}
RESTORED = {"number": 2, "kind": "Restored", "time": unix(110), "step": 5}
DELETED = {
    **{"number": 3, "kind": "Preempted", "time": unix(200), "pod": "worker-1"},
    "group_time": unix(105),
}


@pytest.mark.parametrize(
    ("observed", "seconds"),
    [
        pytest.param(replace(TRAINING, ray_jobs=()), 60, id="RayJob"),
        pytest.param(replace(TRAINING, ray_clusters=(), pods=()), 60, id="RayCluster"),
        pytest.param(replace(TRAINING, pods=(ONE, TWO)), 60, id="head pod"),
        pytest.param(
            replace(TRAINING, nodes=nodes(a_node("spot-1", exists=False))), 60, id="Node of a pod"
        ),
        pytest.param(then(replace(TRAINING, **EMPTY)), 600, id="all, before the next attempt"),
    ],
)
def test_nothing_follows_from_what_is_missing_until_the_api_server_confirms_it(
    observed: Observed, seconds: float
) -> None:
    """A cache lags: what it lacks may be there, and may be well."""

    def planned(confirmed: bool) -> Any:
        now = T0 + timedelta(seconds=seconds)
        seen = replace(observed, confirmed=confirmed)
        return plan(seen, RenderSettings(), ReconcileSettings(), now)

    first, then_ = planned(False), planned(True)
    assert (first.confirm, first.actions, first.status) == (True, (), observed.run.status)
    assert not then_.confirm
    assert then_.actions or then_.status != observed.run.status


def counted(pod: dict[str, Any], seconds: float, **document: Any) -> dict[str, int]:
    """What is counted of a pod that has ended, by an operator that returns then, and later."""
    away = replace(a_polled_run(), pods=(HEAD, pod, TWO), progress=a_progress(**document))
    found = reconcile(away, seconds).status.disruptions.to_dict()
    gone = then(away, seconds, pods=(HEAD, TWO))
    later = reconcile(gone, seconds + 5).status.disruptions.to_dict()
    assert later == found
    return {name: count for name, count in found.items() if count and name != "history"}


@pytest.mark.parametrize(
    "document",
    [
        {"records": [DIED, RESTORED, DELETED], "state": "Recovering"},
        {
            "records": [DIED, RESTORED],
            "step_time": unix(190),
            "ranks": [{"rank": 0, "pod": "worker-1"}],
        },
    ],
    ids=["recorded", "not recorded yet"],
)
def test_a_process_that_died_in_a_pod_that_is_deleted_later_is_a_loss_of_its_own(
    document: dict[str, Any],
) -> None:
    deleted = a_pod("worker-1", terminating_at=198)
    assert counted(deleted, 205, **document) == {"workerFailures": 1, "preemptions": 1}


def test_a_pod_in_which_no_rank_trained_again_is_one_loss() -> None:
    """Ray gave it up, and the others went on without it before its container ended."""
    ended = a_pod("worker-1", exit_code=137, ended_at=130)
    alone = {"records": [DIED, RESTORED], "ranks": [{"rank": 0, "pod": "worker-2"}]}
    assert counted(ended, 205, step_time=unix(190), **alone) == {"workerFailures": 1}


@pytest.mark.parametrize("seconds", [90, 130, 400])
@pytest.mark.parametrize(
    ("kind", "pod", "counter"),
    [
        ("Preempted", a_pod("worker-1", terminating_at=48, grace=600), "preemptions"),
        ("WorkerLost", a_pod("worker-1", exit_code=137, ended_at=49), "workerFailures"),
    ],
    ids=["deleted", "killed"],
)
def test_a_record_that_names_no_pod_is_of_the_pod_that_ended_then_however_late_it_is_seen(
    seconds: float, kind: str, pod: dict[str, Any], counter: str
) -> None:
    record = {"number": 1, "kind": kind, "time": unix(50), "group_time": unix(20)}
    assert counted(pod, seconds, state="Recovering", records=[record]) == {counter: 1}
