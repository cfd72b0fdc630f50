"""Machines that vanish: what is freed, in which order, and what is left alone."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_head, a_node, a_pod, a_progress, a_ray_job, at, nodes, pods
from support.reconciled import a_training_run, reconcile, then
from trainingrun.api.v1alpha1 import TrainingRun
from trainingrun.reconciling import Observed
from trainingrun.reconciling.model import Delete, ExcludeNodes, Manifest, NodeState, Plan

HEAD, ONE, TWO = pods()


def forced(plan: Plan) -> list[str]:
    return [
        action.ref.name
        for action in plan.actions
        if isinstance(action, Delete) and action.ref.kind == "Pod" and action.grace_s == 0
    ]


def excluded(plan: Plan) -> list[str]:
    return [n for action in plan.actions if isinstance(action, ExcludeNodes) for n in action.nodes]


STALE = a_node("spot-1", lease_age_s=16.0)
SILENT = a_progress(lost_nodes=["spot-1"])


@pytest.mark.parametrize(
    ("node", "changes", "lost"),
    [
        pytest.param(a_node("spot-1"), {}, False, id="well"),
        pytest.param(STALE, {}, False, id="stale Lease alone"),
        pytest.param(a_node("spot-1", ready=False), {}, False, id="not ready alone"),
        pytest.param(a_node("spot-1"), {"progress": SILENT}, False, id="silence alone"),
        pytest.param(STALE, {"progress": SILENT}, True, id="stale Lease and silence"),
        pytest.param(
            a_node("spot-1", ready=False), {"progress": SILENT}, True, id="not ready and silence"
        ),
        pytest.param(
            a_node("spot-1", taints=("node.kubernetes.io/unreachable",)),
            {"progress": SILENT},
            True,
            id="unreachable and silence",
        ),
        pytest.param(
            a_node("spot-1", taints=("example.org/mine",)),
            {"progress": SILENT},
            False,
            id="foreign taint and silence",
        ),
        pytest.param(
            a_node("spot-1", lease_age_s=None),
            {"progress": SILENT},
            False,
            id="no Lease and silence",
        ),
        pytest.param(
            a_node("spot-1", lease_age_s=14.0),
            {"progress": SILENT},
            False,
            id="fresh Lease and silence",
        ),
        pytest.param(a_node("spot-1", exists=False), {}, True, id="node gone"),
    ],
)
def test_a_node_is_lost_on_two_independent_signs_or_once_it_is_gone(
    training: Observed, node: NodeState, changes: dict[str, Any], lost: bool
) -> None:
    plan = reconcile(replace(training, nodes=nodes(node), **changes))
    assert (forced(plan), excluded(plan)) == ((["worker-1"], ["spot-1"]) if lost else ([], []))


def test_replacements_are_kept_off_the_node_before_its_pods_are_deleted(
    training: Observed,
) -> None:
    plan = reconcile(replace(training, nodes=nodes(STALE), progress=SILENT))
    assert [type(action) for action in plan.actions] == [ExcludeNodes, Delete]
    (delete,) = (a for a in plan.actions if isinstance(a, Delete))
    assert delete.ref.uid == "uid-1-worker-1"


def test_a_replacement_on_the_lost_node_is_deleted_once_kuberay_has_seen_it(
    training: Observed,
) -> None:
    """KubeRay made it before it had seen the exclusion. One that is gone before KubeRay has seen
    it is awaited for five minutes."""
    lost = then(replace(training, nodes=nodes(STALE), progress=SILENT), 70)
    again = a_pod("worker-9", uid="again", node="spot-1", phase="Pending", created_at=70)
    seen = replace(lost, pods=(*(p for p in pods() if p["metadata"]["name"] != "worker-1"), again))
    early = reconcile(seen, 71)
    assert forced(early) == []
    assert early.requeue_after_s is not None
    assert early.requeue_after_s <= 1
    assert forced(reconcile(then(seen, 71), 75)) == ["worker-9"]


def test_a_head_that_does_not_answer_on_a_stale_node_is_lost_with_it(training: Observed) -> None:
    node = a_node("base-1", lease_age_s=20.0)
    observed = replace(training, nodes=nodes(node), progress=a_progress(), progress_age_s=8.0)
    assert "digits-1-head" in forced(reconcile(replace(observed, progress_failing_s=5.0)))
    assert forced(reconcile(replace(observed, progress_failing_s=3.0))) == []
    kept_out = replace(observed, progress=None, progress_age_s=None, progress_failing_s=500.0)
    assert forced(reconcile(kept_out)) == [], "polls that never worked are no sign of a loss"


def test_polls_that_fail_say_nothing_about_other_nodes(training: Observed) -> None:
    assert forced(reconcile(replace(training, nodes=nodes(STALE), progress_failing_s=60.0))) == []


def test_a_pod_that_outstays_its_grace_on_a_node_that_is_not_ready_is_freed(
    training: Observed,
) -> None:
    stuck = (HEAD, a_pod("worker-1", terminating_at=0, grace=35), TWO)
    not_ready = nodes(a_node("spot-1", ready=False))
    assert forced(reconcile(replace(training, pods=stuck, nodes=not_ready), 46)) == ["worker-1"]
    assert forced(reconcile(replace(training, pods=stuck, nodes=not_ready), 40)) == []
    assert forced(reconcile(replace(training, pods=stuck), 100)) == [], (
        "its node is well: it only saves"
    )


def test_workers_are_replaced_together_with_a_head_that_vanished(training: Observed) -> None:
    assert forced(reconcile(replace(training, pods=(ONE, TWO)))) == ["worker-1", "worker-2"]


def test_a_worker_that_waited_while_its_head_was_lost_joins_the_new_one() -> None:
    waited = a_pod("worker-3", created_at=40)
    waited["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": at(70)}}
    others = a_head(created_at=62, uid="new-head"), a_pod("worker-2", node="spot-2", created_at=64)
    seen = replace(a_training_run(), pods=(waited, *others))
    assert reconcile(seen, 80).actions == ()


def test_a_worker_whose_node_s_clock_is_behind_is_not_taken_for_one_of_the_lost_head() -> None:
    new = a_pod("worker-1", created_at=65)
    new["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": at(-230)}}
    others = a_head(created_at=62, uid="new-head"), a_pod("worker-2", node="spot-2", created_at=64)
    seen = replace(a_training_run(), pods=(new, *others))
    assert reconcile(seen, 80).actions == ()


@pytest.mark.parametrize("role", ["worker", "head"])
def test_what_a_kubelet_says_of_an_eviction_is_in_the_loss(training: Observed, role: str) -> None:
    said = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi"
    ending = {"phase": "Failed", "reason": "Evicted", "message": said}
    evicted = (HEAD, a_pod("worker-1", **ending)) if role == "worker" else (a_head(**ending), ONE)
    (loss,) = reconcile(replace(training, pods=(*evicted, TWO))).status.disruptions.history
    assert said in loss.signs


def test_a_worker_that_joined_the_new_head_is_a_loss_of_its_own_later() -> None:
    """It waited while its head was lost: it is older than the new head, and did not end with it."""
    started = {"state": {"running": {"startedAt": at(70)}}}
    waited, deleted = a_pod("worker-3", created_at=40), a_pod("worker-3", terminating_at=5000)
    deleted["metadata"]["creationTimestamp"] = at(40)
    for pod in (waited, deleted):
        pod["status"]["containerStatuses"][0] |= started
    others = a_head(created_at=62, uid="new-head"), a_pod("worker-2", node="spot-2", created_at=64)
    seen = then(replace(a_training_run(), pods=(waited, *others)), 80)
    found = reconcile(replace(seen, pods=(deleted, *others)), 5000).status.disruptions
    assert (found.head_losses, found.preemptions) == (1, 1)


def test_workers_older_than_the_new_head_are_replaced_once_and_new_ones_left_alone(
    training: Observed,
) -> None:
    new_head = a_head(created_at=62, uid="new-head")
    fresh = a_pod("worker-3", created_at=62)
    plan = reconcile(replace(training, pods=(new_head, ONE, fresh)), 63)
    assert forced(plan) == ["worker-1"]
    going = a_pod("worker-1", terminating_at=63, grace=0)
    assert forced(reconcile(replace(training, pods=(new_head, going, fresh)), 64)) == []


def test_a_head_that_leaves_in_peace_keeps_its_workers_until_it_is_gone(
    training: Observed,
) -> None:
    terminating = then(replace(training, pods=(a_head(terminating_at=60), ONE, TWO)), 61)
    assert forced(reconcile(terminating, 62)) == []
    assert forced(reconcile(replace(terminating, pods=(ONE, TWO)), 90)) == ["worker-1", "worker-2"]


def test_a_head_whose_container_ended_takes_its_workers_along(training: Observed) -> None:
    plan = reconcile(replace(training, pods=(a_head(exit_code=137), ONE, TWO)))
    assert forced(plan) == ["worker-1", "worker-2"]


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param((), id="no pod"),
        pytest.param((HEAD,), id="head"),
        pytest.param((HEAD, ONE), id="head and one worker"),
    ],
)
def test_nothing_is_lost_while_pods_are_still_being_created(
    training: Observed, shown: tuple[Manifest, ...]
) -> None:
    starting = replace(training, run=_begun(), pods=shown)
    assert forced(reconcile(starting, 5)) == []


def _begun() -> TrainingRun:
    from support.builders import a_run

    return a_run(status=reconcile(Observed(a_run()), 0).status)


def test_workers_that_outlive_the_job_s_end_are_not_disturbed(training: Observed) -> None:
    done = replace(training, ray_jobs=(a_ray_job(status="SUCCEEDED"),))
    waiting = then(done, 60)
    assert forced(reconcile(replace(waiting, pods=(ONE, TWO)), 61)) == []


def test_pods_of_an_ended_attempt_on_a_dead_node_are_freed_without_a_driver(
    training: Observed,
) -> None:
    ended = then(replace(training, ray_jobs=()), 60)
    stuck = a_pod("worker-1", terminating_at=61, grace=35)
    dead = nodes(a_node("spot-1", lease_age_s=90.0))
    later = replace(ended, ray_clusters=(), pods=(stuck,), nodes=dead)
    assert forced(reconcile(later, 100)) == []
    assert forced(reconcile(later, 107)) == ["worker-1"]
    assert forced(reconcile(replace(later, nodes=nodes()), 200)) == []


def test_the_next_attempt_keeps_off_a_node_that_was_just_lost(training: Observed) -> None:
    lost = then(replace(training, nodes=nodes(STALE), progress=SILENT), 60)
    ended = then(replace(lost, ray_jobs=()), 62, ray_clusters=(), pods=())
    begins = str(reconcile(ended, 70).actions[-1])
    assert "NotIn" in begins
    assert "spot-1" in begins
    much_later = str(reconcile(ended, 2000).actions[-1])
    assert "spot-1" not in much_later
