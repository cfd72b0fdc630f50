"""Pods keep off a lost node, and no longer than they must: it may be the only one there is."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_node, a_pod, a_progress, a_ray_cluster, nodes, pods
from support.json_patch import patched
from support.reconciled import a_training_run, reconcile, then
from trainingrun.cluster.live_cluster import exclusion_patch
from trainingrun.reconciling import Observed
from trainingrun.reconciling.model import Delete, ExcludeNodes, NodeState, Plan
from trainingrun.rendering.scheduling import HOSTNAME, REQUIRED, excluded_by_cluster

DEAD = a_node("spot-1", lease_age_s=16.0)
SILENT = a_progress(lost_nodes=["spot-1"])
USERS = {"key": HOSTNAME, "operator": "NotIn", "values": ["mine"]}


def a_live_cluster(affinity: dict[str, Any] | None = None) -> dict[str, Any]:
    """With the pod templates that a patch changes."""

    def template() -> dict[str, Any]:
        own = {"affinity": copy.deepcopy(affinity)} if affinity else {}
        return {"template": {"spec": {"containers": [], **own}}}

    groups = [{"groupName": "workers", **template()}]
    return {**a_ray_cluster(), "spec": {"headGroupSpec": template(), "workerGroupSpecs": groups}}


def excluding_nodes(cluster: Mapping[str, Any], *hostnames: str) -> dict[str, Any]:
    """The cluster after the patch that excludes these nodes."""
    return patched(cluster, exclusion_patch(dict(cluster), hostnames))


def exclusions(plan: Plan) -> list[tuple[str, ...]]:
    return [action.nodes for action in plan.actions if isinstance(action, ExcludeNodes)]


@pytest.fixture
def lost() -> Observed:
    """Node spot-1 was lost at 60 s, and the live RayCluster excludes it."""
    training = replace(a_training_run(), ray_clusters=(a_live_cluster(),), progress_age_s=0.5)
    dying = replace(training, nodes=nodes(DEAD), progress=SILENT)
    assert exclusions(reconcile(dying, 60)) == [("spot-1",)]
    excluding = excluding_nodes(a_live_cluster(), "spot-1")
    head, _, other = pods()
    return then(dying, 60, ray_clusters=(excluding,), pods=(head, other), progress=a_progress())


def on_spot_1(**state: Any) -> dict[str, NodeState]:
    return nodes(a_node("spot-1", **state))


def test_an_exclusion_is_patched_once_and_not_again_while_it_holds(lost: Observed) -> None:
    for seconds in (62, 70, 300, 659):
        assert exclusions(reconcile(replace(lost, nodes=on_spot_1(ready=False)), seconds)) == []


@pytest.mark.parametrize(
    ("state", "seconds", "lifted"),
    [
        pytest.param({"lease_age_s": 16.0}, 62, False, id="stale Lease"),
        pytest.param({"lease_age_s": 12.0}, 70, False, id="Lease renewed before the loss"),
        pytest.param({"lease_age_s": 2.0}, 70, True, id="Lease renewed since"),
        pytest.param({"lease_age_s": 2.0, "ready": False}, 70, False, id="not ready"),
        pytest.param(
            {"lease_age_s": 2.0, "taints": ("node.kubernetes.io/unreachable",)},
            70,
            False,
            id="unreachable",
        ),
        pytest.param(
            {"lease_age_s": 2.0, "taints": ("karpenter.sh/disrupted",)}, 70, False, id="disrupted"
        ),
        pytest.param({"lease_age_s": None}, 100, False, id="no Lease"),
        pytest.param({"lease_age_s": None}, 121, True, id="no Lease for a minute"),
        pytest.param({"exists": False}, 500, False, id="node gone"),
        pytest.param({"exists": False}, 660, True, id="node gone for ten minutes"),
    ],
)
def test_an_exclusion_ends_with_proof_that_the_node_is_back_or_with_time(
    lost: Observed, state: dict[str, Any], seconds: float, lifted: bool
) -> None:
    plan = reconcile(replace(lost, nodes=on_spot_1(**state)), seconds)
    assert exclusions(plan) == ([()] if lifted else [])


def test_a_node_that_came_back_and_is_lost_again_is_counted_again(lost: Observed) -> None:
    back = then(replace(lost, nodes=on_spot_1(lease_age_s=1.0)), 80, pods=pods())
    assert reconcile(back, 82).status.disruptions.node_losses == 1
    again = replace(back, nodes=nodes(DEAD), progress=SILENT)
    assert reconcile(again, 120).status.disruptions.node_losses == 2
    assert reconcile(then(again, 120), 122).status.disruptions.node_losses == 2


def test_a_dead_node_whose_pod_nobody_can_delete_is_lost_once(lost: Observed) -> None:
    dead = replace(lost, pods=pods(), progress=SILENT)  # a webhook refuses the deletion
    for seconds in (300, 661, 1300):
        dead = replace(dead, nodes=on_spot_1(ready=False))
        plan = reconcile(dead, seconds)
        assert plan.status.disruptions.node_losses == 1
        assert exclusions(plan) == []
        dead = then(dead, seconds)
    head, _, other = pods()
    gone = replace(dead, pods=(head, other), progress=a_progress())
    assert exclusions(reconcile(gone, 1310)) == [()]


def test_a_node_s_hostname_counts_and_not_its_name() -> None:
    training = replace(a_training_run(), ray_clusters=(a_live_cluster(),), progress_age_s=0.5)
    state = a_node("spot-1", hostname="ip-10-0-0-1", lease_age_s=16.0)
    reported = a_progress(lost_nodes=["ip-10-0-0-1"])
    dying = replace(training, nodes=nodes(state), progress=reported)
    assert exclusions(reconcile(dying, 60)) == [("ip-10-0-0-1",)]
    after = then(dying, 60, ray_jobs=(), ray_clusters=(), pods=(), nodes={})
    begins = str(reconcile(then(after, 62), 64).actions[-1])
    assert "ip-10-0-0-1" in begins
    assert "spot-1" not in begins


def unschedulable_since(seconds: float, cluster: dict[str, Any]) -> dict[str, Any]:
    """A replacement that finds no node, made from the cluster's template."""
    found = a_pod(
        "worker-9",
        unschedulable="0/3 nodes are available: 1 didn't match node affinity",
        created_at=62,
    )
    template = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    return {**found, "spec": {**found["spec"], "affinity": template["affinity"]}}


def test_a_run_recovers_on_three_nodes_of_which_one_rebooted(lost: Observed) -> None:
    """Its replacement has no other place: at last it is made anew, without the exclusion."""
    (excluding,) = lost.ray_clusters
    head, _, other = pods()
    waits = replace(lost, pods=(head, other, unschedulable_since(62, dict(excluding))))
    booting = then(replace(waits, nodes=on_spot_1(ready=False, lease_age_s=40.0)), 90)
    assert reconcile(booting, 92).actions == ()
    well = replace(booting, nodes=on_spot_1(lease_age_s=1.0))
    plan = reconcile(well, 120)
    assert [type(action) for action in plan.actions] == [ExcludeNodes, Delete]
    assert exclusions(plan) == [()]
    assert plan.actions[1].ref.name == "worker-9"  # type: ignore[union-attr]
    bare = excluding_nodes(excluding)
    assert bare == a_live_cluster()
    placed = then(well, 120, ray_clusters=(bare,), pods=(*pods()[:1], other, a_pod("worker-10")))
    settled = reconcile(placed, 130)
    assert (settled.actions, settled.status.phase) == ((), "Running")
    assert settled.status.disruptions.to_dict() == {
        **dict.fromkeys(settled.status.disruptions.to_dict(), 0),
        "history": settled.status.disruptions.to_dict()["history"],
        "nodeLosses": 1,
    }


def test_an_exclusion_yields_to_pods_that_find_no_node_once_the_node_is_healthy(
    lost: Observed,
) -> None:
    (excluding,) = lost.ray_clusters
    head, _, other = pods()
    waits = replace(lost, pods=(head, other, unschedulable_since(62, dict(excluding))))
    no_lease = replace(waits, nodes=on_spot_1(lease_age_s=None))
    assert exclusions(reconcile(no_lease, 85)) == []
    assert exclusions(reconcile(no_lease, 95)) == [()]
    unknown = replace(waits, nodes={})
    assert exclusions(reconcile(unknown, 100)) == []
    assert exclusions(reconcile(unknown, 121)) == [()]


@pytest.mark.parametrize(
    "affinity",
    [
        None,
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [USERS]}]}}},
        {
            "nodeAffinity": {
                REQUIRED: {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                        {"matchFields": [{"key": "metadata.name", "operator": "In"}]},
                    ]
                }
            },
            "podAffinity": {"x": 1},
        },
    ],
    ids=["none", "a user's own exclusion", "alternatives"],
)
def test_exactly_these_hostnames_are_excluded_and_a_user_s_own_stay(
    affinity: dict[str, Any] | None,
) -> None:
    cluster = a_live_cluster(affinity)
    before = copy.deepcopy(cluster)
    two = excluding_nodes(cluster, "a", "b")
    assert cluster == before
    assert excluded_by_cluster(two) == {"a", "b"}
    assert exclusion_patch(two, ("b", "a")) == []
    one = excluding_nodes(two, "b")
    assert excluded_by_cluster(one) == {"b"}
    assert ("mine" in str(one)) == (affinity is not None and "mine" in str(affinity))
    assert excluding_nodes(one) == before
