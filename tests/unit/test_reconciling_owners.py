"""What counts as the run's own is the chain of controllers, by UID. Labels alone decide nothing."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.builders import (
    OTHER_UID,
    T0,
    a_head,
    a_node,
    a_pod,
    a_progress,
    a_ray_cluster,
    a_ray_job,
    controlled_by,
    nodes,
    pods,
    unix,
)
from support.reconciled import a_polled_run, in_the_way, reconcile, then, wanting
from trainingrun.reconciling import Observed, ReconcileSettings, plan
from trainingrun.reconciling.model import Apply, Delete, NodePrice, Plan
from trainingrun.rendering import RenderSettings

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


# Owner references are written by whoever creates the pod, and prove nothing alone.


def forged(role: str = "worker", **pod: Any) -> dict[str, Any]:
    """Names the run's own RayCluster, with its UID, as its controller."""
    made = {"role": role, "created_at": 61, "uid": "forged", **pod}
    return a_pod(**{"name": f"forged-{role}", **made})


FORGED = {
    "worker that died": forged(exit_code=137, ended_at=62),
    "worker that died by itself": forged(exit_code=1, ended_at=62, termination_message="x"),
    "worker out of memory": forged(exit_code=137, ended_because="OOMKilled", ended_at=62),
    "worker evicted": forged(reason="Evicted", exit_code=137, ended_at=62),
    "worker drained": forged(disruption="EvictionByEvictionAPI", terminating_at=62),
    "worker refused by its node": forged(reason="OutOfcpu", exit_code=1),
    "worker of a node that is gone": forged(disruption="DeletionByPodGC", exit_code=137),
    "worker that lives": forged(),
    "worker that finds no node": forged(unschedulable="0/3 nodes are available"),
    "worker that cannot start": forged(waiting=("ErrImagePull", "no such image")),
    "worker as old as the others": forged(created_at=0, exit_code=1),
    "head that died": forged("head", exit_code=137, ended_at=62),
    "head out of memory": forged("head", exit_code=137, ended_because="OOMKilled"),
    "head that lives": forged("head"),
    "head that is older": forged("head", created_at=-5),
    "head that leaves": forged("head", terminating_at=62),
}


@pytest.mark.parametrize("pod", FORGED.values(), ids=FORGED)
def test_a_pod_beside_all_that_kuberay_keeps_ends_and_counts_nothing(
    training: Observed, pod: dict[str, Any]
) -> None:
    expected = reconcile(training, 66)
    beside = replace(training, pods=(pod, *training.pods))
    assert reconcile(beside, 66) == expected
    many = [
        {**pod, "metadata": {**pod["metadata"], "name": f"forged-{n}", "uid": f"forged-{n}"}}
        for n in range(7)
    ]
    assert reconcile(replace(training, pods=(*many, *training.pods)), 66) == expected
    gone = then(beside, 66, pods=training.pods)
    assert reconcile(gone, 70).status.to_dict() == reconcile(training, 70).status.to_dict()


def test_a_node_that_only_a_forged_pod_is_on_is_none_of_the_run_s(training: Observed) -> None:
    beside = replace(
        training,
        pods=(*training.pods, forged(node="elsewhere", terminating_at=20, grace=0)),
        nodes=nodes(a_node("elsewhere", ready=False)),
    )
    plan = reconcile(beside, 66)
    assert plan.actions == ()
    assert plan.status.disruptions.node_losses == 0


def test_pods_that_were_forged_before_a_loss_are_not_counted_after_it(training: Observed) -> None:
    """They wait until a place is free, which KubeRay fills with a new pod."""
    waiting = [forged(name=f"forged-{n}", uid=f"forged-{n}", created_at=31) for n in range(5)]
    lost = a_pod(
        "worker-1", node="spot-1", exit_code=137, ended_at=70, termination_message="killed"
    )
    spare_budget = replace(a_polled_run(), pods=(HEAD, lost, TWO, *waiting))
    seen = then(spare_budget, 71)
    assert seen.run.status.disruptions.worker_failures == 1
    died = [
        forged(name=f"forged-{n}", uid=f"forged-{n}", created_at=31, exit_code=1) for n in range(5)
    ]
    seen = then(replace(seen, pods=(HEAD, TWO, *died)), 75)
    successor = a_pod("worker-3", node="spot-3", created_at=76)
    seen = then(replace(seen, pods=(HEAD, TWO, successor, *died)), 80)
    assert seen.run.status.disruptions.worker_failures == 1
    assert seen.run.status.attempts[-1].outcome == "Running"


def test_a_loss_that_the_pod_and_the_driver_tell_of_takes_one_place() -> None:
    """Else the pod that KubeRay made for an earlier loss, and still waits, is none of the run's."""
    workers = {"count": 4, "minimum": 2}
    well = [a_pod(f"worker-{n}", node=f"spot-{n}", ready=True) for n in (1, 2, 3, 4)]
    begun = a_polled_run(workers=workers)
    nodes_of_all = nodes(*(a_node(f"spot-{n}") for n in (3, 4, 5)))
    seen = replace(
        begun, pods=(HEAD, *well), ray_clusters=(a_ray_cluster(replicas=4),), nodes=nodes_of_all
    )
    gone = replace(then(seen, 31), pods=(HEAD, a_pod("worker-1", terminating_at=50), *well[1:]))
    waits = a_pod("worker-5", created_at=58, unschedulable="no spot", unschedulable_at=59)
    gone = then(gone, 50, pods=(HEAD, waits, *well[1:]))
    second = a_pod("worker-2", node="spot-2", terminating_at=80)
    gone = then(then(gone, 60, pods=(HEAD, waits, second, *well[2:])), 80)
    lost = {"kind": "Preempted", "node": "spot-2"}
    records = [
        {**lost, "number": 1, "time": unix(52), "pod": "worker-1", "group_time": unix(20)},
        {**lost, "number": 2, "time": unix(82), "pod": "worker-2", "group_time": unix(54)},
    ]
    rows = [{"rank": n, "pod": f"worker-{pod}"} for n, pod in enumerate((3, 4, 6))]
    told = a_progress(records=records, world_size=3, step_time=unix(90), ranks=rows)
    replaced = a_pod("worker-6", node="spot-5", created_at=88, ready=True)
    told_of = replace(gone, progress=told, pods=(HEAD, waits, replaced, *well[2:]))
    for seconds in (90, 200, 1000, 1100, 5000):  # the losses are forgotten, and the records stay
        assert "worker-5" in in_the_way(reconcile(told_of, seconds)).message, seconds
        told_of = then(told_of, seconds)
    assert "counted" not in told_of.run.status.seen


def test_the_pods_in_which_the_driver_has_ranks_are_the_run_s_own_whatever_is_older(
    training: Observed,
) -> None:
    rows = [{"rank": 0, "pod": "worker-1"}, {"rank": 1, "pod": "worker-2"}]
    known = replace(training, progress=a_progress(ranks=rows))
    older = [forged(name=f"a{n}", uid=f"forged-{n}", created_at=-9, exit_code=1) for n in range(3)]
    assert reconcile(replace(known, pods=(*older, *known.pods)), 66) == reconcile(known, 66)


def test_a_head_counts_as_one_only_once_kuberay_names_it() -> None:
    """Between the RayCluster and its head somebody else's pod may be there."""
    begun = a_polled_run()
    unnamed = a_ray_cluster()
    unnamed["status"]["head"] = {}
    early = forged("head", created_at=-1)
    run = begun.run.model_copy(deep=True)
    run.status.seen.pop("head")
    seen = then(replace(begun, run=run, ray_clusters=(unnamed,), pods=(early,)), 31)
    assert "head" not in seen.run.status.seen
    seen = then(replace(seen, ray_clusters=begun.ray_clusters, pods=(early, *begun.pods)), 32)
    assert seen.run.status.seen["head"] == HEAD["metadata"]["uid"]
    assert reconcile(replace(seen, pods=begun.pods), 34).status.disruptions.head_losses == 0


def test_no_worker_is_replaced_while_kuberay_may_soon_name_the_next_head() -> None:
    """Its status lags behind the pods: workers may have joined the new head already."""
    new = a_head(uid="next", created_at=62)
    new["metadata"]["name"] = "digits-1-head-2"
    joined = replace(a_polled_run(), pods=(new, ONE, TWO))
    assert reconcile(joined, 66).actions == ()
    named = replace(joined, ray_clusters=(a_ray_cluster(head="digits-1-head-2"),))
    assert reconcile(named, 66).status.seen["head"] == "next"


@pytest.mark.parametrize("number", [2, 3, 4])
def test_pods_of_a_ray_cluster_that_is_not_there_end_no_attempt_of_a_suspended_run(
    training: Observed, number: int
) -> None:
    gone = {"ray_jobs": (), "ray_clusters": (), "pods": ()}
    asked = then(wanting(training, suspend=True), 66)
    over = replace(asked, progress=a_progress(state="Suspended"))
    suspended = then(then(over, 70, **gone), 75)
    assert in_the_way(reconcile(suspended, 76)).status == "False"
    pod = forged(number=number, name=f"digits-{number}-x", ray_cluster="nobody-has-seen-it")
    seen = suspended
    for seconds in (80, 90, 100):
        seen = then(then(seen, seconds, pods=(pod,)), seconds + 5, pods=())
    assert [one.number for one in seen.run.status.attempts] == [1]
    assert seen.run.status.phase == "Suspended"
    assert begun(reconcile(wanting(replace(seen, pods=(pod,))), 120)) == ["digits-2"]


def test_what_a_forged_pod_requests_costs_the_run_nothing() -> None:
    price = NodePrice(labels={"type": "big"}, per_hour=3600.0)
    settings = ReconcileSettings(prices=(price,))
    node = a_node("spot-1", labels={"type": "big"}, allocatable={"cpu": 8.0})
    seen = replace(a_polled_run(), nodes=nodes(node))
    beside = replace(seen, pods=(*seen.pods, forged(requests={"cpu": "8"}, node="spot-1")))
    now = T0 + timedelta(seconds=66)
    assert plan(beside, RenderSettings(), settings, now) == plan(
        seen, RenderSettings(), settings, now
    )
