"""What nobody else explains gets a sentence, and what needs no person is put right."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import (
    OTHER_UID,
    a_head,
    a_pod,
    a_progress,
    a_ray_cluster,
    a_ray_job,
    at,
    pods,
)
from support.reconciled import a_polled_run, a_training_run, begins, in_the_way, reconcile, then
from trainingrun.reconciling import Observed
from trainingrun.reconciling.model import Delete, Plan

HEAD, ONE, TWO = pods()
HOUR = 3600.0


@pytest.fixture
def training() -> Observed:
    return then(a_polled_run(), 62)


@pytest.fixture
def ended(training: Observed) -> Observed:
    """The attempt has ended at 70 s; the run would continue with the next."""
    failure = {"kind": "Infrastructure", "message": "the cluster went away"}
    return then(replace(training, progress=a_progress(state="Failed", failure=failure)), 70)


def deletions(plan: Plan) -> list[tuple[str, str, int | None]]:
    return [(a.ref.kind, a.ref.name, a.grace_s) for a in plan.actions if isinstance(a, Delete)]


def stalled(plan: Plan) -> str | None:
    found = in_the_way(plan)
    return found.reason if found.status == "True" else None


def test_kuberay_that_makes_no_pods_at_all_is_said(training: Observed) -> None:
    nothing = replace(training, ray_jobs=(a_ray_job(),), ray_clusters=(), pods=(), progress=None)
    fresh = replace(nothing, run=a_training_run().run)
    seen = then(fresh, 100)
    assert stalled(reconcile(seen, 150)) is None
    plan = reconcile(seen, 161)
    assert stalled(plan) == "KubeRaySilent"
    assert "3 missing pods of RayJob digits-1" in in_the_way(plan).message
    assert plan.status.attempts[-1].outcome == "Running"
    back = then(seen, 161, pods=pods(), ray_clusters=(a_ray_cluster(),))
    assert stalled(reconcile(back, 170)) is None


@pytest.mark.parametrize(
    "shown",
    [(HEAD, ONE), (HEAD, ONE, a_pod("worker-2", exit_code=1))],
    ids=["gone", "ended"],
)
def test_kuberay_that_does_not_replace_a_pod_is_said(
    training: Observed, shown: tuple[Any, ...]
) -> None:
    seen = then(replace(training, pods=shown), 100)
    assert stalled(reconcile(seen, 159)) is None
    assert stalled(reconcile(seen, 160)) == "KubeRaySilent"
    assert "incompleteSince" not in reconcile(replace(seen, pods=pods()), 162).status.seen


def test_a_pod_that_outstays_its_grace_on_a_node_that_is_well_is_said(training: Observed) -> None:
    terminating = a_pod("worker-1", terminating_at=100, grace=35)
    seen = replace(training, pods=(HEAD, terminating, TWO))
    assert stalled(reconcile(seen, 194)) is None
    plan = reconcile(seen, 195)
    assert stalled(plan) == "PodTerminating"
    message = in_the_way(plan).message
    assert "worker-1" in message
    assert "spot-1" in message
    assert "kubectl delete pod worker-1 -n team-a --force" in message
    assert deletions(reconcile(seen, HOUR)) == [], "its processes may live"


def test_a_pod_whose_processes_have_ended_is_freed_where_it_only_lingers(
    training: Observed,
) -> None:
    """Two signs: its grace period is long over, and the kubelet says that nothing runs."""
    terminating = a_pod("worker-1", terminating_at=100, grace=35, exit_code=0, ended_at=110)
    seen = replace(training, pods=(HEAD, terminating, TWO))
    assert deletions(reconcile(seen, 194)) == []
    assert deletions(reconcile(seen, 195)) == [("Pod", "worker-1", 0)]


def test_between_attempts_a_lingering_pod_is_freed_after_a_long_patience(ended: Observed) -> None:
    terminating = a_pod("worker-1", terminating_at=75, grace=35)
    left = replace(ended, ray_jobs=(), ray_clusters=(), pods=(terminating,))
    assert stalled(reconcile(left, 170)) == "PodTerminating"
    assert deletions(reconcile(left, 709)) == []
    assert deletions(reconcile(left, 710)) == [("Pod", "worker-1", 0)]


def held(item: dict[str, Any], seconds: float) -> dict[str, Any]:
    metadata = {
        **item["metadata"],
        "deletionTimestamp": at(seconds),
        "finalizers": ["ray.io/rayjob-finalizer"],
    }
    return {**item, "metadata": metadata}


def test_a_ray_job_whose_finalizer_nobody_removes_is_said_and_its_machines_are_freed(
    ended: Observed,
) -> None:
    hanging = replace(ended, ray_jobs=(held(a_ray_job(), 71),))
    assert (stalled(reconcile(hanging, 130)), deletions(reconcile(hanging, 130))) == (None, [])
    plan = reconcile(hanging, 131)
    assert stalled(plan) == "DeletionHangs"
    message = in_the_way(plan).message
    for word in ("digits-1", "ray.io/rayjob-finalizer", "kubectl patch rayjob digits-1 -n team-a"):
        assert word in message
    assert deletions(plan) == [("RayCluster", "digits-1-abcde", None)]
    freed = replace(hanging, ray_clusters=(), pods=())
    assert (reconcile(freed, 140).actions, reconcile(freed, 140).status.attempt) == ((), 1)
    assert begins(reconcile(replace(freed, ray_jobs=()), 200)) == 2


def test_an_orphaned_ray_cluster_is_deleted(ended: Observed) -> None:
    orphan = replace(ended, ray_jobs=())
    assert deletions(reconcile(orphan, 90)) == [], "the garbage collector has some time"
    assert deletions(reconcile(orphan, 101)) == [("RayCluster", "digits-1-abcde", None)]
    beside = replace(orphan, ray_jobs=(a_ray_job(),))
    assert deletions(reconcile(beside, 101)) == [("RayJob", "digits-1", None)]
    owner = {"kind": "Deployment", "name": "mine", "uid": OTHER_UID}
    cluster = a_ray_cluster()
    foreign = {**cluster, "metadata": {**cluster["metadata"], "ownerReferences": [owner]}}
    plan = reconcile(replace(orphan, ray_clusters=(foreign,)), 101)
    assert deletions(plan) == []
    assert stalled(plan) == "ForeignObject"
    assert "Deployment mine" in in_the_way(plan).message


def test_orphaned_pods_are_deleted(ended: Observed) -> None:
    orphans = replace(ended, ray_jobs=(), ray_clusters=(), pods=(HEAD, ONE))
    assert deletions(reconcile(orphans, 90)) == []
    assert deletions(reconcile(orphans, 101)) == [
        ("Pod", "digits-1-head", None),
        ("Pod", "worker-1", None),
    ]
    going = replace(orphans, pods=(a_head(terminating_at=101),))
    assert deletions(reconcile(going, 103)) == []


def test_an_ended_run_says_what_keeps_its_machines_and_changes_nothing_else(
    training: Observed,
) -> None:
    done = then(replace(training, progress=a_progress(state="Succeeded")), 70)
    hanging = replace(done, ray_jobs=(held(a_ray_job(), 71),))
    plan = reconcile(hanging, 140)
    assert stalled(plan) == "DeletionHangs"
    others = [known for known in plan.status.conditions if known.type != "Waiting"]
    assert others == [known for known in done.run.status.conditions if known.type != "Waiting"]
    gone = then(hanging, 140, ray_jobs=(), ray_clusters=(), pods=())
    assert stalled(reconcile(gone, 150)) is None
