"""What the API server does not report is unknown, and nothing is decided on its absence."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_head, a_node, a_pod, a_progress, a_ray_job, nodes, pods
from support.reconciled import a_polled_run, begins, condition, in_the_way, reconcile, then, wanting
from trainingrun.api.status import Phase
from trainingrun.reconciling import Observed
from trainingrun.reconciling.model import Delete, RequestSuspend

WHY = "403: trainingrun-operator cannot list it in namespace team-a"
HOUR = 3600.0


def lost(*kinds: str) -> dict[str, Any]:
    return {"stale": dict.fromkeys(kinds, WHY)}


@pytest.fixture
def training() -> Observed:
    """A run that trains, 62 seconds into the story."""
    return then(a_polled_run(), 62)


NOTHING = {
    "ray_jobs": (),
    "ray_clusters": (),
    "pods": (),
    "progress": None,
    "progress_age_s": None,
}


@pytest.mark.parametrize(
    ("kinds", "gone"),
    [
        pytest.param(("RayJob",), {"ray_jobs": ()}, id="RayJob"),
        pytest.param(("RayCluster",), {"ray_clusters": ()}, id="RayCluster"),
        pytest.param(("Pod",), {"pods": ()}, id="every pod"),
        pytest.param(("Pod",), {"pods": pods()[1:]}, id="head pod"),
        pytest.param(("Node",), {"nodes": {}}, id="every node"),
        pytest.param(
            ("Node",), {"nodes": nodes(a_node("spot-1", exists=False, ready=False))}, id="one node"
        ),
        pytest.param(("RayJob", "RayCluster", "Pod", "Node"), NOTHING, id="everything"),
    ],
)
def test_an_attempt_of_which_something_is_unknown_goes_on_and_the_status_says_so(
    training: Observed, kinds: tuple[str, ...], gone: dict[str, Any]
) -> None:
    before = training.run.status
    seen = replace(training, **gone, **lost(*kinds))
    for seconds in (64, HOUR):
        plan = reconcile(seen, seconds)
        assert (plan.actions, plan.events) == ((), ())
        assert plan.status.attempts[-1].outcome == "Running"
        assert plan.status.disruptions == before.disruptions
        stalled = in_the_way(plan)
        assert (stalled.status, stalled.reason) == ("True", "ApiAccessLost")
        assert WHY in stalled.message
        assert plan.status.phase is Phase.RUNNING
        for kind in ("Accepted", "Ready", "Suspended", "Succeeded", "Failed"):
            assert condition(plan, kind) in before.conditions
        assert plan.requeue_after_s is not None
    again = then(seen, 64)
    assert reconcile(again, 66).status == again.run.status, "and it does not flap"
    fresh = reconcile(replace(again, **{**vars_of(training), "stale": {}}), 70)
    assert in_the_way(fresh).status == "False"
    assert fresh.status.disruptions == before.disruptions


def vars_of(observed: Observed) -> dict[str, Any]:
    names = ("ray_jobs", "ray_clusters", "pods", "nodes", "progress", "progress_age_s")
    return {name: getattr(observed, name) for name in names}


def test_the_driver_s_own_end_counts_though_the_api_server_reports_nothing(
    training: Observed,
) -> None:
    done = a_progress(state="Succeeded", step=100)
    plan = reconcile(replace(training, progress=done, **lost("RayJob", "Pod")))
    assert plan.status.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("kind", ["RayJob", "RayCluster", "Pod"])
def test_no_attempt_begins_while_something_of_the_former_may_be_there(
    training: Observed, kind: str
) -> None:
    ended = then(replace(training, ray_jobs=()), 70)
    unseen = replace(ended, ray_clusters=(), pods=(), **lost(kind))
    plan = reconcile(unseen, HOUR)
    assert (plan.actions, plan.status.attempt) == ((), 1)
    assert in_the_way(plan).reason == "ApiAccessLost"
    assert begins(reconcile(replace(unseen, stale={}), HOUR)) == 2


def test_the_first_attempt_waits_too() -> None:
    from support.builders import a_run

    fresh = Observed(a_run(), **lost("RayJob"))
    assert begins(reconcile(fresh)) is None
    assert begins(reconcile(replace(fresh, stale={}))) == 1


def test_a_suspended_run_counts_as_such_only_once_its_pods_are_seen_to_be_gone(
    training: Observed,
) -> None:
    asked = then(wanting(training, suspend=True), 64)
    ended = then(replace(asked, progress=a_progress(state="Suspended")), 66)
    empty = replace(ended, ray_jobs=(), ray_clusters=(), pods=())
    unseen = reconcile(replace(empty, **lost("Pod")), 70)
    assert unseen.status.phase is not Phase.SUSPENDED
    assert reconcile(empty, 70).status.phase is Phase.SUSPENDED


def test_a_wish_to_suspend_is_handed_on_and_not_given_up_on(training: Observed) -> None:
    asked = then(wanting(training, suspend=True), 64)
    unseen = replace(asked, **lost("Pod"))
    assert reconcile(unseen, 200).actions == (RequestSuspend(1),)
    nothing = replace(unseen, pods=(), progress=None)
    assert reconcile(nothing, 200).status.attempts[-1].outcome == "Running"


@pytest.mark.parametrize("kind", ["RayJob", "Pod", "TrainingRun"])
def test_a_run_s_ttl_waits_until_it_is_known_that_nothing_is_left(
    training: Observed, kind: str
) -> None:
    mortal = wanting(training, ttlSecondsAfterFinished=10)
    done = then(replace(mortal, progress=a_progress(state="Succeeded")), 66)
    empty = replace(done, ray_jobs=(), ray_clusters=(), pods=())
    assert reconcile(replace(empty, **lost(kind)), HOUR).actions == ()
    assert [type(action) for action in reconcile(empty, HOUR).actions] == [Delete]


def test_what_is_seen_may_still_be_deleted(training: Observed) -> None:
    ended = then(replace(training, progress=a_progress(state="Suspended")), 70)
    plan = reconcile(replace(ended, **lost("Pod")), 72)
    assert [action.ref.kind for action in plan.actions if isinstance(action, Delete)] == ["RayJob"]


def test_stale_leases_are_no_sign_of_a_lost_node(training: Observed) -> None:
    silent = replace(
        training,
        nodes=nodes(a_node("spot-1", lease_age_s=HOUR)),
        progress=a_progress(lost_nodes=["spot-1"]),
    )
    assert reconcile(silent).actions != ()
    assert reconcile(replace(silent, **lost("Lease"))).actions == ()


@pytest.mark.parametrize(("silent_s", "failures"), [(None, 2), (2.0, 2), (60.0, 0)])
def test_workers_that_end_while_their_head_s_node_may_be_dead_are_no_losses_of_their_own(
    training: Observed, silent_s: float | None, failures: int
) -> None:
    """Ray ends a worker a minute after its head; Kubernetes shows that one as running longer."""
    ended = (pods()[0], a_pod("worker-1", exit_code=1), a_pod("worker-2", exit_code=1))
    seen = replace(training, pods=ended, progress_failing_s=silent_s, **lost("Node"))
    assert reconcile(seen, 130).status.disruptions.worker_failures == failures


def test_a_ray_job_that_was_seen_to_end_has_ended(training: Observed) -> None:
    job = a_ray_job(status="FAILED", message="exit code 1")
    failed = replace(training, ray_jobs=(job,), pods=(a_head(exit_code=1),), **lost("RayJob"))
    assert reconcile(failed, 100).status.attempts[-1].outcome == "Lost"
