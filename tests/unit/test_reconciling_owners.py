"""What counts as the run's own is the chain of controllers, by UID. Labels alone decide nothing."""

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
    controlled_by,
    pods,
)
from support.reconciled import a_polled_run, reconcile, then
from trainingrun.reconciling import Observed
from trainingrun.reconciling.model import Apply, Delete, Plan

HEAD, ONE, TWO = pods()


@pytest.fixture
def training() -> Observed:
    return then(a_polled_run(failures={"maxPreemptions": 0}), 62)


@pytest.fixture
def ended() -> Observed:
    """The attempt has ended at 70 s, and nothing of it is left at 75 s."""
    failure = {"kind": "Infrastructure", "message": "the cluster went away"}
    over = replace(then(a_polled_run(), 62), progress=a_progress(state="Failed", failure=failure))
    return then(then(over, 70), 75, ray_jobs=(), ray_clusters=(), pods=())


def copied(item: dict[str, Any], owners: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Another object with the same labels, without an owner unless one is given."""
    metadata = {k: v for k, v in item["metadata"].items() if k != "ownerReferences"}
    metadata |= {"name": f"copy-of-{metadata['name']}", "uid": f"copy-of-{metadata['uid']}"}
    return {**item, "metadata": metadata | ({"ownerReferences": owners} if owners else {})}


def begun(plan: Plan) -> list[str]:
    """Names of the RayJobs that are created."""
    manifests = [action.manifest for action in plan.actions if isinstance(action, Apply)]
    return [found["metadata"]["name"] for found in manifests if found["kind"] == "RayJob"]


COPIES = {
    "worker of the next attempt": copied(a_pod(number=2)),
    "head of the next attempt": copied(a_head(2)),
    "head, newer": copied(a_head(created_at=61)),
    "head, terminating": copied(a_head(terminating_at=61)),
    "worker, ended": copied(a_pod(exit_code=1, ended_at=61)),
    "worker, evicted": copied(a_pod(disruption="EvictionByEvictionAPI", terminating_at=61)),
    "worker, out of memory": copied(a_pod(exit_code=137, ended_because="OOMKilled")),
    "worker of another owner": copied(a_pod(exit_code=1), controlled_by("Job", "other", OTHER_UID)),
    "worker of a RayCluster of another": copied(
        a_pod(exit_code=1), controlled_by("RayCluster", "digits-x-abcde", OTHER_UID)
    ),
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_a_pod_that_only_carries_the_run_s_labels_ends_and_counts_nothing(
    training: Observed, copy: dict[str, Any]
) -> None:
    expected = reconcile(training, 66)
    beside = replace(training, pods=(*training.pods, copy))
    assert reconcile(beside, 66) == expected
    gone = then(beside, 66, pods=training.pods)
    assert reconcile(gone, 70).status.to_dict() == reconcile(training, 70).status.to_dict()


@pytest.mark.parametrize("number", [1, 2])
def test_a_ray_cluster_that_only_carries_the_run_s_labels_changes_nothing(
    training: Observed, number: int
) -> None:
    copy = copied(a_ray_cluster(number))
    beside = replace(training, ray_clusters=(*training.ray_clusters, copy))
    assert reconcile(beside, 66) == reconcile(training, 66)


def test_a_ray_job_of_the_next_attempt_ends_no_attempt_that_runs(training: Observed) -> None:
    """Also one with the owner reference of the first: each begins after the former's end."""
    beside = replace(training, ray_jobs=(*training.ray_jobs, a_ray_job(2)))
    assert reconcile(beside, 66) == reconcile(training, 66)


def test_a_second_head_beside_one_that_lives_is_a_copy_whatever_its_owner(
    training: Observed,
) -> None:
    """An exported manifest keeps its owner references; KubeRay replaces only what is gone."""
    copy = a_head(created_at=61, uid="copy")
    beside = replace(training, pods=(*training.pods, copy))
    assert reconcile(beside, 66).actions == ()
    assert not any(reconcile(beside, 66).status.disruptions.to_dict().values())


def test_copies_hold_back_no_attempt_and_are_never_deleted(ended: Observed) -> None:
    copies = replace(
        ended,
        ray_clusters=(copied(a_ray_cluster(1)),),
        pods=(copied(HEAD), copied(a_pod(number=2)), copied(a_pod(terminating_at=75))),
    )
    for seconds in (80, 4000):
        plan = reconcile(copies, seconds)
        assert begun(plan) == ["digits-2"]
        assert not [action for action in plan.actions if isinstance(action, Delete)]


def test_copies_do_not_keep_an_ended_run_from_its_deletion(training: Observed) -> None:
    done = then(replace(training, progress=a_progress(state="Succeeded")), 70)
    run = done.run.model_copy(
        update={"spec": done.run.spec.model_copy(update={"ttl_seconds_after_finished": 10})}
    )
    left = replace(done, run=run, ray_jobs=(), ray_clusters=(), pods=(copied(HEAD),))
    (deletion,) = reconcile(left, 90).actions
    assert isinstance(deletion, Delete)
    assert deletion.ref.kind == "TrainingRun"


def test_pods_stay_the_run_s_own_while_their_ray_cluster_goes(training: Observed) -> None:
    """Somebody deletes the RayCluster: its pods get a notice, and end as those of this run."""
    leaving = tuple(pods(terminating_at=66))
    seen = replace(training, ray_clusters=(), pods=leaving)
    plan = reconcile(seen, 66)
    assert plan.actions == (), "the workers get their notice"
    assert plan.status.disruptions.head_losses == 1


def test_nothing_begins_beside_pods_whose_owners_are_gone_already(ended: Observed) -> None:
    left = replace(ended, pods=(a_head(terminating_at=75),))
    assert begun(reconcile(left, 80)) == []
    assert begun(reconcile(replace(left, pods=()), 80)) == ["digits-2"]


def test_a_ray_job_that_a_former_leader_created_late_is_deleted(ended: Observed) -> None:
    """It was stopped between its last check that it leads and the request."""
    begun = then(ended, 80, ray_jobs=(a_ray_job(2),))
    late = replace(begun, ray_jobs=(a_ray_job(1), a_ray_job(2)))
    (deletion,) = reconcile(late, 90).actions
    assert isinstance(deletion, Delete)
    assert deletion.ref.name == "digits-1"
    assert reconcile(late, 90).status.attempt == 2
