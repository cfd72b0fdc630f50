"""Which nodes new workers go to: on-demand nodes for a while, and no pod that runs is ended."""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.builders import (
    T0,
    a_head,
    a_node,
    a_pod,
    a_progress,
    a_ray_cluster,
    a_ray_job,
    a_run,
    at,
    nodes,
)
from support.json_patch import patched
from support.reconciled import begins, in_the_way, reconcile, then
from trainingrun import rendering
from trainingrun.cluster.live_cluster import exclusion_patch, placement_patch
from trainingrun.reconciling import Observed, Plan
from trainingrun.reconciling.context import ReconcileContext
from trainingrun.reconciling.findings import StatusDraft
from trainingrun.reconciling.losses import capacity, history
from trainingrun.reconciling.model import Apply, Delete, PlaceWorkers, ReconcileSettings
from trainingrun.rendering import RenderSettings, platforms, scheduling
from trainingrun.rendering.names import PLACEMENT_LABEL
from trainingrun.rendering.scheduling import REQUIRED, excluded_by_cluster, placement_of_cluster

FALLBACK = {
    "afterPreemptions": 2,
    "withinSeconds": 600,
    "afterPendingSeconds": 120,
    "returnAfterSeconds": 900,
}
SPOT_LABELS = {"trainingrun.dev/capacity": "spot"}
IN_ZONE_B = {**SPOT_LABELS, "topology.kubernetes.io/zone": "zone-b"}
SPOT = {"count": 2, "capacity": {"type": "Spot", "fallback": FALLBACK}}
NODES = nodes(
    a_node("base-1", labels={"topology.kubernetes.io/zone": "zone-a"}),
    *(a_node(f"spot-{number}", labels=SPOT_LABELS) for number in (1, 2, 3)),
    *(
        a_node(f"demand-{number}", labels={"trainingrun.dev/capacity": "on-demand"})
        for number in (1, 2)
    ),
)


def a_live_cluster(workers: dict[str, Any], number: int = 1) -> dict[str, Any]:
    """As KubeRay makes it of what was rendered."""
    spec = rendering.attempt(a_run(workers=workers), number, RenderSettings())["spec"]
    return {**a_ray_cluster(number), "spec": copy.deepcopy(spec["rayClusterSpec"])}


def placed(cluster: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """The cluster after the plan's patch."""
    (action,) = placements(plan)
    return patched(cluster, placement_patch(cluster, action.template))


def placements(plan: Plan) -> list[PlaceWorkers]:
    return [action for action in plan.actions if isinstance(action, PlaceWorkers)]


def deleted(plan: Plan) -> list[str]:
    return [action.ref.name for action in plan.actions if isinstance(action, Delete)]


def where(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """What selects the nodes of its workers."""
    (group,) = cluster["spec"]["workerGroupSpecs"]
    fields = ("affinity", "nodeSelector", "tolerations")
    return {field: group["template"]["spec"].get(field) or {} for field in fields}


def worker(name: str, node: str | None, label: str = "spot", **pod: Any) -> dict[str, Any]:
    found = a_pod(name, node=node, **pod)
    found["metadata"]["labels"][PLACEMENT_LABEL] = label
    return found


def waiting(name: str, since: float, label: str = "spot") -> dict[str, Any]:
    return worker(name, None, label, created_at=since, unschedulable="0/3 nodes are available")


def a_spot_run(workers: dict[str, Any] | None = None, **spec: Any) -> Observed:
    """Two workers train on spot-1 and spot-2."""
    workers = workers or SPOT
    begun = then(
        Observed(a_run(workers=workers, **spec)),
        0,
        ray_jobs=(a_ray_job(status="RUNNING"),),
        ray_clusters=(a_live_cluster(workers),),
        pods=(a_head(), worker("worker-1", "spot-1"), worker("worker-2", "spot-2")),
        nodes=NODES,
        progress_age_s=0.5,
    )
    return then(begun, 30)


def lose(seen: Observed, seconds: float, lost: str, made: dict[str, Any]) -> Observed:
    """A worker is drained, and another one made; the status is written in between."""
    pods = [pod for pod in seen.pods if pod["metadata"]["name"] != lost]
    (going,) = [pod for pod in seen.pods if pod["metadata"]["name"] == lost]
    metadata = {**going["metadata"], "deletionTimestamp": at(seconds + 30)}
    going = {**going, "metadata": {**metadata, "deletionGracePeriodSeconds": 30}}
    drained = then(replace(seen, pods=(*pods, going)), seconds)
    born = max(at(seconds + 1), made["metadata"]["creationTimestamp"])
    made = {**made, "metadata": {**made["metadata"], "creationTimestamp": born}}
    return then(replace(drained, pods=tuple(pods)), seconds, pods=(*pods, made))


@pytest.fixture
def twice() -> Observed:
    """Two spot nodes were lost at 100 and 200 s, and nothing was done yet about the second."""
    once = lose(a_spot_run(), 100, "worker-1", worker("worker-3", "spot-3"))
    assert once.run.status.capacity is not None
    assert once.run.status.capacity.type == "Spot"
    return lose(once, 200, "worker-2", waiting("worker-4", 205))


def test_the_status_says_which_capacity_each_worker_has_and_since_when() -> None:
    found = a_spot_run().run.status.capacity
    assert found is not None
    assert found.to_dict() == {
        "type": "Spot",
        "since": at(0),
        "message": "",
        "avoided": [],
        "spot": 2,
        "onDemand": 0,
        "workers": [
            {"pod": "worker-1", "node": "spot-1", "capacity": "Spot", "since": at(3)},
            {"pod": "worker-2", "node": "spot-2", "capacity": "Spot", "since": at(3)},
        ],
    }


def test_after_two_spot_nodes_new_workers_go_to_on_demand_nodes(twice: Observed) -> None:
    status = twice.run.status
    assert status.capacity is not None
    assert (status.capacity.type, status.capacity.since) == ("OnDemand", at(200))
    assert status.capacity.return_time == at(1100)
    assert status.capacity.message == (
        "New workers go to on-demand nodes: 2 spot nodes were lost within 600 s (spot-1, spot-2)"
    )
    first, second = status.disruptions.history
    assert [(loss.node, loss.capacity, loss.since) for loss in (first, second)] == [
        ("spot-1", "Spot", at(3)),
        ("spot-2", "Spot", at(3)),
    ]
    plan = reconcile(twice, 206)
    (action,) = placements(plan)
    assert action.ray_cluster.uid == "cluster-1"
    assert deleted(plan) == [], "the group is not patched yet: it would be made as it was"


def test_the_patch_makes_the_group_as_an_attempt_on_on_demand_nodes_is_rendered(
    twice: Observed,
) -> None:
    (live,) = twice.ray_clusters
    found = placed(dict(live), reconcile(twice, 206))
    assert where(found) == where(a_live_cluster({"count": 2}))
    before, after = (cluster["spec"] for cluster in (live, found))
    assert after["headGroupSpec"] == before["headGroupSpec"], "the head stays"
    (old,), (new,) = before["workerGroupSpecs"], after["workerGroupSpecs"]
    assert new["template"]["spec"]["containers"] == old["template"]["spec"]["containers"]


def test_only_pods_without_a_node_are_made_anew_once_the_group_is_patched(twice: Observed) -> None:
    live = placed(dict(twice.ray_clusters[0]), reconcile(twice, 206))
    pods = [copy.deepcopy(dict(pod)) for pod in twice.pods]
    pods[-1]["metadata"]["resourceVersion"] = "77"
    then_patched = then(twice, 206, ray_clusters=(live,), pods=tuple(pods))
    plan = reconcile(then_patched, 208)
    assert placements(plan) == []
    (action,) = plan.actions
    assert isinstance(action, Delete)
    assert (action.ref.name, action.grace_s) == ("worker-4", None)
    assert action.unchanged_since == "77", "one that gets a node meanwhile is not deleted"
    going = copy.deepcopy(pods[-1])
    going["metadata"] |= {"deletionTimestamp": at(238), "deletionGracePeriodSeconds": 30}
    seen = replace(then_patched, pods=(*pods[:-1], going))
    assert reconcile(seen, 209).status.disruptions.preemptions == 2, "that is no loss"
    placed_pod = worker("worker-5", "demand-1", "on-demand", created_at=210)
    settled = then(replace(then_patched, pods=(*pods[:-1], placed_pod)), 215)
    assert reconcile(settled, 220).actions == ()
    assert settled.run.status.capacity is not None
    assert (settled.run.status.capacity.spot, settled.run.status.capacity.on_demand) == (1, 1)


def test_the_condition_and_an_event_say_why(twice: Observed) -> None:
    before = lose(a_spot_run(), 100, "worker-1", worker("worker-3", "spot-3"))
    going = copy.deepcopy(dict(before.pods[1]))
    going["metadata"] |= {"deletionTimestamp": at(230), "deletionGracePeriodSeconds": 30}
    plan = reconcile(replace(before, pods=(before.pods[0], going, before.pods[2])), 200)
    (event,) = [event for event in plan.events if event.reason == "CapacityChanged"]
    assert event.message.startswith("New workers go to on-demand nodes: 2 spot nodes were lost")
    live = placed(dict(twice.ray_clusters[0]), reconcile(twice, 206))
    done = worker("worker-5", "demand-1", "on-demand", created_at=210)
    settled = replace(twice, ray_clusters=(live,), pods=(*twice.pods[:-1], done))
    told = in_the_way(reconcile(settled, 220))
    assert (told.type, told.reason) == ("Waiting", "CapacityFallback")
    assert told.message.endswith(
        f"(since {at(200)}); from {at(1100)} on they go to spot nodes again"
    )


@pytest.mark.parametrize(
    ("second", "falls_back"),
    [
        pytest.param(650, True, id="within the window"),
        pytest.param(701, False, id="after the first one has left it"),
    ],
)
def test_losses_count_within_the_window_alone(second: float, falls_back: bool) -> None:
    once = lose(a_spot_run(), 100, "worker-1", worker("worker-3", "spot-3"))
    again = lose(once, second, "worker-2", worker("worker-4", "spot-1"))
    assert again.run.status.capacity is not None
    assert (again.run.status.capacity.type == "OnDemand") is falls_back


def test_the_pods_of_one_node_are_one_loss() -> None:
    both = (a_head(), worker("worker-1", "spot-1"), worker("worker-2", "spot-1"))
    on_one_node = replace(a_spot_run(), pods=both)
    first = lose(on_one_node, 100, "worker-1", worker("worker-3", "spot-2"))
    found = lose(first, 102, "worker-2", worker("worker-4", "spot-2")).run.status
    assert found.disruptions.preemptions == 2
    assert found.capacity is not None
    assert found.capacity.type == "Spot"


def with_many_pods(number: int, on: list[str], **fallback: Any) -> Observed:
    """A run trains on these spot nodes, with so many pods on each."""
    workers = {
        "count": number * len(on),
        "capacity": {"type": "Spot", "fallback": {"withinSeconds": 86400, **fallback}},
    }
    spot = {f"spot-{n}": a_node(f"spot-{n}", labels=SPOT_LABELS) for n in range(1, 130)}
    pods = (worker(f"{node}-{each}", node) for node in on for each in range(number))
    seen = replace(a_spot_run(workers), nodes={**NODES, **spot}, pods=(a_head(), *pods))
    return then(seen, 40)


def drain(seen: Observed, seconds: float, *lost: str, to: str = "") -> Observed:
    """These pods are drained, and as many made on the node `to`, or on none; the status is written
    in between.
    """
    going, left = [], []
    for pod in seen.pods:
        metadata = {**pod["metadata"], "deletionTimestamp": at(seconds + 30)}
        metadata["deletionGracePeriodSeconds"] = 30
        is_lost = pod["metadata"]["name"] in lost
        (going if is_lost else left).append({**pod, "metadata": metadata} if is_lost else pod)
    assert len(going) == len(lost)
    drained = then(replace(seen, pods=(*left, *going)), seconds)
    made = [worker(f"{to}-of-{name}", to, created_at=seconds + 1) for name in lost if to]
    return then(replace(drained, pods=(*left, *made)), seconds + 5)


def pods_on(seen: Observed, *names: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in seen.pods if pod["spec"].get("nodeName") in names]


def lost_nodes(seen: Observed) -> list[str | None]:
    """The spot nodes that count as lost, by the status."""
    return [loss.node for loss in history.spot_losses(StatusDraft.of(seen.run.status))]


@pytest.mark.parametrize(
    ("pods", "fallback", "after"),
    [
        pytest.param(8, {"afterPreemptions": 10}, 10, id="8 pods, 10 nodes"),
        pytest.param(32, {}, 3, id="32 pods, 3 nodes"),
    ],
)
def test_nodes_count_however_many_pods_each_had(
    pods: int, fallback: dict[str, Any], after: int
) -> None:
    """The history has the last 50 losses of pods, which are those of a few nodes."""
    seen = with_many_pods(pods, ["spot-1"], **fallback)
    for number in range(1, after + 1):
        assert seen.run.status.capacity is not None
        assert seen.run.status.capacity.type == "Spot"
        lost = pods_on(seen, f"spot-{number}")
        seen = drain(seen, 100 * number, *lost, to=f"spot-{number + 1}")
    assert len(seen.run.status.disruptions.history) == 50 < pods * after
    assert lost_nodes(seen) == [f"spot-{number}" for number in range(1, after + 1)]
    assert seen.run.status.capacity is not None
    assert seen.run.status.capacity.type == "OnDemand"
    assert f": {after} spot nodes were lost within 86400 s" in seen.run.status.capacity.message


def test_nodes_count_that_are_all_lost_at_once() -> None:
    names = ["spot-1", "spot-2", "spot-3"]
    seen = with_many_pods(32, names)
    seen = drain(seen, 100, *pods_on(seen, *names))
    assert lost_nodes(seen) == names
    assert chosen(reconcile(seen, 110)) == ("OnDemand", None)
    assert lost_nodes(then(seen, 110)) == names, "once"


def test_a_node_counts_once_though_its_first_entry_is_no_longer_kept() -> None:
    """And another time for another node of its name, minutes later."""
    seen = with_many_pods(32, ["spot-1", "spot-2", "spot-3"], afterPreemptions=4)
    first, rest = pods_on(seen, "spot-1")[:16], pods_on(seen, "spot-1")[16:]
    seen = drain(seen, 100, *first, to="spot-9")
    seen = drain(seen, 110, *pods_on(seen, "spot-2", "spot-3"), to="spot-9")
    assert {loss.node for loss in seen.run.status.disruptions.history} == {"spot-2", "spot-3"}
    seen = drain(seen, 120, *rest, to="spot-1")
    assert lost_nodes(seen) == ["spot-1", "spot-2", "spot-3"]
    assert chosen(reconcile(seen, 130)) == ("Spot", None)
    seen = drain(seen, 500, *pods_on(seen, "spot-1"))
    assert lost_nodes(seen) == ["spot-1", "spot-2", "spot-3", "spot-1"]
    assert chosen(reconcile(seen, 510)) == ("OnDemand", None)


def test_a_loss_that_another_one_explains_later_does_not_count_beside_it() -> None:
    """Though its entry is no longer kept by then."""
    seen = with_many_pods(32, ["spot-1", "spot-2", "spot-3"], afterPreemptions=9)
    ending = {"deletionTimestamp": at(900), "deletionGracePeriodSeconds": 800}
    going = tuple(
        {**pod, "metadata": {**pod["metadata"], **ending}}
        if pod["spec"].get("nodeName") == "spot-1"
        else pod
        for pod in seen.pods
    )
    seen = then(replace(seen, pods=going), 100)
    seen = drain(seen, 110, *pods_on(seen, "spot-2", "spot-3"), to="spot-9")
    assert lost_nodes(seen) == ["spot-1", "spot-2", "spot-3"]
    gone = a_node("spot-1", exists=False, ready=False, labels=SPOT_LABELS)
    seen = then(replace(seen, nodes={**seen.nodes, "spot-1": gone}, confirmed=True), 500)
    assert seen.run.status.disruptions.node_losses == 1
    assert lost_nodes(seen) == ["spot-2", "spot-3", "spot-1"]


def test_no_more_losses_are_kept_than_any_fallback_counts() -> None:
    names = [f"spot-{number}" for number in range(1, 121)]
    seen = with_many_pods(1, names, afterPreemptions=50)
    seen = drain(seen, 100, *pods_on(seen, *names))
    assert len(seen.run.status.seen["spotLosses"]) == 50
    assert lost_nodes(seen) == names[-100:]
    assert chosen(reconcile(seen, 110)) == ("OnDemand", None)


def test_a_run_whose_workers_stay_on_their_kind_of_node_keeps_none() -> None:
    names = ["spot-1", "spot-2"]
    spot = with_many_pods(40, names)
    seen = replace(spot, run=a_run(workers={"count": 80}, status=spot.run.status))
    seen = drain(seen, 100, *pods_on(seen, *names))
    assert seen.run.status.disruptions.preemptions == 80
    assert "spotLosses" not in seen.run.status.seen


def test_the_loss_of_an_on_demand_node_does_not_count() -> None:
    on_demand = (a_head(), worker("worker-1", "spot-1"), worker("worker-2", "demand-1"))
    first = lose(
        replace(a_spot_run(), pods=on_demand), 100, "worker-2", worker("worker-3", "demand-2")
    )
    found = lose(first, 150, "worker-3", worker("worker-4", "spot-2")).run.status
    assert [loss.capacity for loss in found.disruptions.history] == ["OnDemand", "OnDemand"]
    assert found.capacity is not None
    assert found.capacity.type == "Spot"


def test_a_loss_counts_whose_node_is_gone_and_unknown_to_a_restarted_operator() -> None:
    seen = a_spot_run()
    gone = {**NODES, "spot-1": a_node("spot-1", exists=False, ready=False, labels={})}
    plan = reconcile(replace(seen, nodes=gone, confirmed=True), 100)
    (entry,) = plan.status.disruptions.history
    assert (entry.node, entry.capacity, entry.since) == ("spot-1", "Spot", at(3))


def a_waiting_run(since: float = 60, label: str = "spot") -> Observed:
    """One of two workers waits for a node."""
    pods = (a_head(), worker("worker-1", "spot-1"), waiting("worker-2", since, label))
    return replace(a_spot_run(), pods=pods)


def test_a_pod_that_finds_no_spot_node_for_long_goes_to_an_on_demand_node() -> None:
    seen = then(a_waiting_run(60), 65)
    before = reconcile(seen, 179)
    assert before.status.capacity is not None
    assert before.status.capacity.type == "Spot"
    assert before.requeue_after_s is not None
    assert before.requeue_after_s <= 15
    after = reconcile(seen, 181).status.capacity
    assert after is not None
    assert after.type == "OnDemand"
    assert after.message.endswith("a worker pod has found no spot node for 120 s")


def test_a_pod_that_has_to_be_on_the_node_of_others_is_sent_to_no_other_node() -> None:
    packed = {**SPOT, "placement": "StrictPack"}
    beside = lose(a_spot_run(packed), 100, "worker-1", waiting("worker-3", 105))
    found = reconcile(beside, 10_000)
    assert (found.status.capacity.type if found.status.capacity else None) == "Spot"
    alone = lose(beside, 10_010, "worker-2", waiting("worker-4", 10_015))
    after = reconcile(alone, 10_200).status.capacity
    assert after is not None
    assert after.type == "OnDemand"


def test_a_pod_that_is_made_anew_meanwhile_has_waited_before() -> None:
    seen = then(a_waiting_run(60), 65)
    anew = then(replace(seen, pods=seen.pods[:2]), 150, pods=a_waiting_run(152).pods)
    found = reconcile(anew, 181).status.capacity
    assert found is not None
    assert found.type == "OnDemand"
    complete = (*seen.pods[:2], worker("worker-3", "spot-2", created_at=100))
    again = then(replace(seen, pods=complete), 150, pods=a_waiting_run(152).pods)
    found = reconcile(again, 181).status.capacity
    assert found is not None
    assert found.type == "Spot", "every worker had a node in between"


def test_new_workers_go_to_spot_nodes_again_after_a_while_and_the_others_stay(
    twice: Observed,
) -> None:
    live = placed(dict(twice.ray_clusters[0]), reconcile(twice, 206))
    pods = (
        *twice.pods[:2],
        worker("worker-5", "demand-1", "on-demand", created_at=210),
    )
    settled = then(replace(twice, ray_clusters=(live,), pods=pods), 220)
    assert reconcile(settled, 1099).status.capacity == settled.run.status.capacity
    back = reconcile(settled, 1101)
    assert back.status.capacity is not None
    assert (back.status.capacity.type, back.status.capacity.message) == ("Spot", "")
    assert [event.reason for event in back.events] == ["CapacityChanged"]
    assert deleted(back) == [], "what runs on an on-demand node stays there"
    assert where(placed(live, back)) == where(a_live_cluster(SPOT))
    again = then(settled, 1101, ray_clusters=(placed(live, back),))
    assert reconcile(again, 1110).actions == ()
    assert reconcile(again, 1110).status.capacity is not None
    assert reconcile(again, 1110).status.capacity.type == "Spot", "former losses count no more"


def test_a_later_loss_of_a_spot_node_makes_it_last_longer(twice: Observed) -> None:
    live = placed(dict(twice.ray_clusters[0]), reconcile(twice, 206))
    pods = (*twice.pods[:2], worker("worker-5", "demand-1", "on-demand", created_at=210))
    settled = then(replace(twice, ray_clusters=(live,), pods=pods), 220)
    lost = lose(settled, 500, "worker-3", worker("worker-6", "demand-2", "on-demand"))
    assert lost.run.status.capacity is not None
    assert lost.run.status.capacity.return_time == at(1400)


def test_the_next_attempt_begins_on_on_demand_nodes(twice: Observed) -> None:
    failed = then(twice, 206, ray_jobs=(), ray_clusters=(), pods=(), confirmed=True)
    ended = then(failed, 210)
    plan = reconcile(ended, 240)
    assert begins(plan) == 2
    (job,) = [a.manifest for a in plan.actions if isinstance(a, Apply) and "spec" in a.manifest][
        -1:
    ]
    cluster = {"spec": job["spec"]["rayClusterSpec"]}
    assert placement_of_cluster(cluster) == "on-demand"
    begun = then(
        replace(ended, ray_jobs=(a_ray_job(2),), ray_clusters=({**a_ray_cluster(2), **cluster},)),
        242,
    )
    assert begun.run.status.attempts[-1].capacity == "OnDemand"
    assert placements(reconcile(begun, 244)) == []


def test_an_excluded_node_stays_excluded(twice: Observed) -> None:
    live = patched(dict(twice.ray_clusters[0]), exclusion_patch(twice.ray_clusters[0], ["dead"]))
    (action,) = placements(reconcile(replace(twice, ray_clusters=(live,)), 206))
    found = patched(live, placement_patch(live, action.template))
    assert excluded_by_cluster(found) == {"dead"}
    template = found["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    (term,) = template["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    keys = [(each["key"], each["operator"]) for each in term["matchExpressions"]]
    assert keys == [("trainingrun.dev/capacity", "NotIn"), ("kubernetes.io/hostname", "NotIn")]
    assert placement_patch(found, action.template) == []


def test_a_users_pod_template_holds_on_on_demand_nodes_too() -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}
    template = {
        "spec": {
            "nodeSelector": {"b": "c"},
            "tolerations": [{"key": "d", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {REQUIRED: terms}},
        }
    }
    run = a_run(workers={**SPOT, "podTemplate": template})
    found = rendering.worker_nodes(run, 1, RenderSettings(), rendering.Placement("OnDemand"))
    assert found["spec"]["nodeSelector"] == {"b": "c"}
    assert "d" in {toleration["key"] for toleration in found["spec"]["tolerations"]}
    (term,) = found["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    keys = {(each["key"], each["operator"]) for each in term["matchExpressions"]}
    assert keys == {("trainingrun.dev/capacity", "NotIn"), ("a", "Exists")}


FLAVOR = {"key": "pool", "operator": "Equal", "value": "research", "effect": "NoSchedule"}


def admitted(cluster: dict[str, Any], *tolerations: dict[str, Any]) -> dict[str, Any]:
    """As Kueue has made it: the node labels and tolerations of a flavor are in its workers too."""
    found = copy.deepcopy(cluster)
    (group,) = found["spec"]["workerGroupSpecs"]
    spec = group["template"]["spec"]
    spec["nodeSelector"] = {**spec.get("nodeSelector", {}), "pool": "research"}
    spec["tolerations"] += [FLAVOR, *tolerations]
    return found


def relabeled(cluster: dict[str, Any], label: str | None) -> dict[str, Any]:
    found = copy.deepcopy(cluster)
    (group,) = found["spec"]["workerGroupSpecs"]
    group["template"]["metadata"]["labels"][PLACEMENT_LABEL] = label
    if label is None:
        del group["template"]["metadata"]["labels"][PLACEMENT_LABEL]
    return found


def moved(
    cluster: dict[str, Any], to: rendering.Placement, workers: dict[str, Any] = SPOT
) -> dict[str, Any]:
    """The cluster once its workers go there."""
    run, settings = a_run(workers=workers), RenderSettings()
    return patched(
        cluster, placement_patch(cluster, rendering.worker_nodes(run, 1, settings, to, cluster))
    )


def sorted_tolerations(cluster: Mapping[str, Any]) -> list[str]:
    return sorted(json.dumps(each, sort_keys=True) for each in where(cluster)["tolerations"])


def test_what_a_queues_flavor_has_added_stays_wherever_workers_go(twice: Observed) -> None:
    flavored = admitted(dict(twice.ray_clusters[0]))
    plan = reconcile(replace(twice, ray_clusters=(flavored,)), 206)
    on_demand = placed(flavored, plan)
    assert where(on_demand) == where(admitted(a_live_cluster({"count": 2})))
    spot = moved(on_demand, rendering.Placement("Spot"))
    assert where(spot)["nodeSelector"] == {"pool": "research"}
    assert sorted_tolerations(spot) == sorted_tolerations(flavored)
    assert where(spot)["affinity"] == where(flavored)["affinity"]
    assert where(moved(spot, rendering.Placement("OnDemand"))) == where(on_demand)


def test_a_flavors_toleration_that_is_the_same_as_ours_stays_when_ours_goes() -> None:
    (ours,) = platforms.load("generic").spot.tolerations
    cluster = admitted(a_live_cluster(SPOT), ours)
    for _ in range(2):
        cluster = moved(cluster, rendering.Placement("OnDemand"))
        assert where(cluster)["tolerations"].count(ours) == 1
        cluster = moved(cluster, rendering.Placement("Spot"))
        assert where(cluster)["tolerations"].count(ours) == 2


def test_another_product_takes_the_place_of_the_former_one_beside_a_flavors_labels() -> None:
    workers = {"count": 2, "accelerator": GPU}
    flavored = admitted(a_live_cluster(workers))
    for product in ("a100", "l4", None):
        flavored = moved(flavored, rendering.Placement("OnDemand", product=product), workers)
        found = {"nvidia.com/gpu.product": product or "h100", "pool": "research"}
        assert where(flavored)["nodeSelector"] == found


def test_a_label_that_only_the_former_placement_selects_by_goes() -> None:
    rendered = [
        {"affinity": {}, "tolerations": [], "nodeSelector": selector}
        for selector in ({"a": "1", "b": "1"}, {"b": "2", "c": "2"})
    ]
    live = {"nodeSelector": {"a": "1", "b": "1", "pool": "research"}}
    found = scheduling.replaced(live, *rendered)
    assert found["nodeSelector"] == {"pool": "research", "b": "2", "c": "2"}


def test_where_the_former_placement_is_not_known_nothing_but_its_affinity_goes() -> None:
    live = admitted(relabeled(a_live_cluster(SPOT), "of-another-operator"))
    found = moved(live, rendering.Placement("OnDemand"))
    expected = where(a_live_cluster({"count": 2}))
    assert where(found) == {**where(live), "affinity": expected["affinity"]}
    again = relabeled(found, "of-another-operator")
    assert where(moved(again, rendering.Placement("Spot"))) == where(live)


def test_a_group_without_the_label_has_the_first_placement() -> None:
    live = admitted(relabeled(a_live_cluster(SPOT), None))
    found = moved(live, rendering.Placement("OnDemand"))
    assert where(found) == where(admitted(a_live_cluster({"count": 2})))


@pytest.mark.parametrize("stale", ["Pod", "RayCluster"])
def test_nothing_is_patched_or_deleted_on_what_may_be_out_of_date(
    twice: Observed, stale: str
) -> None:
    unknown = replace(twice, stale={stale: "the API server answers 403"})
    assert reconcile(unknown, 206).actions == ()
    kept = reconcile(unknown, 206).status.capacity
    assert kept is not None
    assert kept.type == "OnDemand"


def context_of(seen: Observed, seconds: float) -> ReconcileContext:
    now = T0 + timedelta(seconds=seconds)
    return ReconcileContext(seen, RenderSettings(), ReconcileSettings(), now)


def test_a_run_on_on_demand_nodes_has_no_such_status() -> None:
    assert reconcile(Observed(a_run()), 0).status.capacity is None


def test_a_caller_may_have_new_workers_go_to_on_demand_nodes_for_half_an_hour() -> None:
    """Or for `fallback.returnAfterSeconds`."""
    seen = a_spot_run({"count": 2, "capacity": {"type": "Spot"}})
    before = StatusDraft.of(seen.run.status)
    found = capacity.to_on_demand(context_of(seen, 100), before, "rule 1 requests it")
    chosen = found.status["capacity"]
    assert (chosen.type, chosen.return_time) == ("OnDemand", at(1900))
    assert chosen.message == "New workers go to on-demand nodes: rule 1 requests it"
    draft = before.changed(found)
    status = draft.status.model_copy(update={"seen": draft.bookkeeping.write()})
    asked = replace(seen, run=seen.run.model_copy(update={"status": status}))
    assert len(placements(reconcile(asked, 102))) == 1
    again = capacity.to_on_demand(context_of(asked, 103), draft, "rule 1 requests it")
    assert again.status == {}
    back = reconcile(asked, 1900).status.capacity
    assert back is not None
    assert (back.type, back.return_time, back.message) == ("Spot", None, "")


def on_demand(**when: Any) -> dict[str, Any]:
    return {"rules": [{"when": when, "then": "RestartOnDemand"}]}


def test_a_loss_that_meets_a_rule_sends_new_workers_to_on_demand_nodes_at_once() -> None:
    workers = {"count": 2, "capacity": {"type": "Spot"}}
    seen = a_spot_run(workers, failures=on_demand(classes=["Preempted"]))
    lost = lose(seen, 100, "worker-1", waiting("worker-3", 101))
    found = lost.run.status.capacity
    assert found is not None
    assert (found.type, found.since, found.return_time) == ("OnDemand", at(100), at(1900))
    assert found.message == (
        "New workers go to on-demand nodes: by rule 1 of failures.rules, as Pod worker-1 ended: "
        "it was deleted or drained"
    )
    plan = reconcile(lost, 102)
    made = placed(dict(lost.ray_clusters[0]), plan)
    assert where(made) == where(a_live_cluster({"count": 2}))
    patched_then = then(lost, 102, ray_clusters=(made,))
    assert deleted(reconcile(patched_then, 104)) == ["worker-3"], "and no pod that has a node"
    there = worker("worker-4", "demand-1", "on-demand", created_at=110)
    trains = replace(patched_then, pods=(*lost.pods[:2], there))
    blocked = in_the_way(reconcile(trains, 120))
    assert (blocked.reason, found.message in blocked.message) == ("CapacityFallback", True)
    back = reconcile(trains, 1900)
    assert back.status.capacity is not None
    assert (back.status.capacity.type, deleted(back)) == ("Spot", [])


@pytest.mark.parametrize(
    ("workers", "when"),
    [
        pytest.param({"count": 2}, {"classes": ["Preempted"]}, id="they are there already"),
        pytest.param(
            {"count": 2, "capacity": {"type": "Spot"}}, {"classes": ["Hang"]}, id="another loss"
        ),
    ],
)
def test_a_rule_changes_no_placement(workers: dict[str, Any], when: dict[str, Any]) -> None:
    seen = a_spot_run(workers, failures=on_demand(**when))
    lost = lose(seen, 100, "worker-1", waiting("worker-3", 101))
    assert lost.run.status.disruptions.preemptions == 1
    found = lost.run.status.capacity
    assert found is None or found.type == "Spot"
    assert placements(reconcile(lost, 102)) == []


@pytest.mark.parametrize("max_restarts", [3, 0])
def test_the_attempt_after_an_end_that_meets_a_rule_begins_on_on_demand_nodes(
    max_restarts: int,
) -> None:
    workers = {"count": 2, "capacity": {"type": "PreferSpot", "fallback": FALLBACK}}
    rules = on_demand(reasons=["ValueError"])
    seen = a_spot_run(workers, failures={**rules, "maxRestarts": max_restarts})
    failure = {"kind": "Application", "message": "rank 1 raised ValueError"}
    error = a_progress(state="Failed", failure={**failure, "facts": {"reasons": ["ValueError"]}})
    ended = then(replace(seen, progress=error), 100)
    found = ended.run.status.capacity
    assert found is not None
    if not max_restarts:
        assert (found.type, ended.run.status.phase) == ("Spot", "Failed"), "nothing follows"
        return
    assert (found.type, found.return_time) == ("OnDemand", at(1000))
    assert found.message.endswith("by rule 1 of failures.rules, as rank 1 raised ValueError")
    gone = replace(ended, ray_jobs=(), ray_clusters=(), pods=(), progress=None)
    plan = reconcile(gone, 160)
    assert begins(plan) == 2
    (job,) = [
        action.manifest
        for action in plan.actions
        if isinstance(action, Apply) and action.manifest["kind"] == "RayJob"
    ]
    cluster = {"spec": job["spec"]["rayClusterSpec"]}
    assert placement_of_cluster(cluster) == "on-demand"


PREFER_SPOT = {"count": 2, "capacity": {"type": "PreferSpot"}}


def test_a_run_that_prefers_spot_takes_any_node_after_a_minute_without_one() -> None:
    """And spot before others: autoscalers take a spot node that is being made for one that fits."""
    seen = a_spot_run(PREFER_SPOT)
    seen = then(replace(seen, pods=(*seen.pods[:2], waiting("worker-2", 60))), 65)
    before = reconcile(seen, 119).status.capacity
    assert before is not None
    assert before.type == "Spot"
    plan = reconcile(seen, 121)
    assert plan.status.capacity is not None
    assert (plan.status.capacity.type, plan.status.capacity.return_time) == ("Any", at(1921))
    assert [event.type for event in plan.events] == ["Normal"], "the spec asks for no more"
    any_node = placed(dict(seen.ray_clusters[0]), plan)
    affinity = where(any_node)["affinity"]["nodeAffinity"]
    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    settled = then(seen, 121, ray_clusters=(any_node,))
    assert deleted(reconcile(settled, 123)) == ["worker-2"], "it is made anew, for any node"
    assert in_the_way(reconcile(settled, 123)).reason == "Unschedulable"
    back = reconcile(settled, 1922)
    assert back.status.capacity is not None
    assert back.status.capacity.type == "Spot"


def test_one_that_spreads_waits_for_no_spot_node() -> None:
    seen = a_spot_run({**PREFER_SPOT, "placement": "Spread"})
    seen = then(replace(seen, pods=(*seen.pods[:2], waiting("worker-2", 60, "any"))), 65)
    found = reconcile(seen, 10_000)
    assert found.status.capacity is not None
    assert found.status.capacity.type == "Any"
    assert found.actions == ()


def test_losses_before_it_took_any_node_count_too() -> None:
    workers = {"count": 2, "capacity": {"type": "PreferSpot", "fallback": FALLBACK}}
    once = lose(a_spot_run(workers), 100, "worker-1", waiting("worker-3", 105))
    any_node = then(once, 226)
    assert any_node.run.status.capacity is not None
    assert any_node.run.status.capacity.type == "Any"
    found = lose(any_node, 300, "worker-2", waiting("worker-4", 305)).run.status.capacity
    assert found is not None
    assert found.type == "OnDemand"


MANY = {"count": 2, "capacity": {"type": "Spot", "fallback": {**FALLBACK, "afterPreemptions": 9}}}
SMALL = {"node.kubernetes.io/instance-type": "small"}


def on(workers: dict[str, Any], *labels: dict[str, str]) -> Observed:
    """Two workers train on spot nodes with these labels."""
    spot = {
        f"spot-{number}": a_node(f"spot-{number}", labels=found)
        for number, found in enumerate(labels, 1)
    }
    return replace(a_spot_run(workers), nodes={**NODES, **spot})


def twice_in_a_zone() -> Observed:
    """Two spot nodes of zone-b were lost at 100 and 200 s, and a pod waits for a node."""
    once = lose(on(MANY, IN_ZONE_B, IN_ZONE_B), 100, "worker-1", worker("worker-3", "spot-3"))
    assert once.run.status.capacity is not None
    assert once.run.status.capacity.avoided == []
    return lose(once, 200, "worker-2", waiting("worker-4", 205))


def test_a_zone_of_which_two_spot_nodes_were_lost_is_avoided_for_half_an_hour() -> None:
    seen = twice_in_a_zone()
    assert seen.run.status.capacity is not None
    (avoided,) = seen.run.status.capacity.avoided
    assert avoided.to_dict() == {
        "label": "topology.kubernetes.io/zone",
        "value": "zone-b",
        "losses": 2,
        "until": at(2000),
    }
    plan = reconcile(seen, 206)
    found = placed(dict(seen.ray_clusters[0]), plan)
    (term,) = where(found)["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "trainingrun.dev/capacity", "operator": "In", "values": ["spot"]},
        {"key": "topology.kubernetes.io/zone", "operator": "NotIn", "values": ["zone-b"]},
    ]
    settled = then(seen, 206, ray_clusters=(found,))
    assert deleted(reconcile(settled, 208)) == ["worker-4"]
    label = scheduling_label(found)
    elsewhere = worker("worker-5", "spot-1", label, created_at=210)
    calm = then(replace(settled, pods=(*seen.pods[:-1], elsewhere)), 215)
    assert reconcile(calm, 1999).actions == ()
    later = reconcile(calm, 2001)
    assert later.status.capacity is not None
    assert later.status.capacity.avoided == []
    assert where(placed(found, later)) == where(a_live_cluster(MANY))


def scheduling_label(cluster: Mapping[str, Any]) -> str:
    return placement_of_cluster(cluster) or ""


def test_what_is_avoided_is_forgiven_where_a_pod_finds_no_other_node() -> None:
    """There may be no other zone; and the same losses do not have it avoided once more."""
    seen = twice_in_a_zone()
    found = placed(dict(seen.ray_clusters[0]), reconcile(seen, 206))
    anew = waiting("worker-5", 210, scheduling_label(found))
    waits = then(replace(seen, ray_clusters=(found,), pods=(*seen.pods[:-1], anew)), 215)
    assert placements(reconcile(waits, 269)) == []
    plan = reconcile(waits, 271)
    assert plan.status.capacity is not None
    assert plan.status.capacity.avoided == []
    bare = placed(found, plan)
    forgiven = then(waits, 271, ray_clusters=(bare,))
    assert deleted(reconcile(forgiven, 273)) == ["worker-5"]
    assert placements(reconcile(forgiven, 300)) == []


def test_an_instance_type_is_avoided_in_all_zones_unless_it_is_the_product() -> None:
    labels = ({**IN_ZONE_B, **SMALL}, {**SPOT_LABELS, **SMALL})
    gaudi = {**MANY, "accelerator": {"kind": "gaudi", "product": "small"}}
    for workers, avoided in ((MANY, [*SMALL.items()]), (gaudi, [])):
        once = lose(on(workers, *labels), 100, "worker-1", worker("worker-3", "spot-3"))
        found = lose(once, 200, "worker-2", waiting("worker-4", 205)).run.status.capacity
        assert found is not None
        assert [(each.label, each.value) for each in found.avoided] == avoided


GPU = {"kind": "nvidia", "products": ["h100", "a100", "l4"]}


def product_of(cluster: Mapping[str, Any]) -> str:
    return str(where(cluster)["nodeSelector"]["nvidia.com/gpu.product"])


def chosen(plan: Plan) -> tuple[str, str | None]:
    assert plan.status.capacity is not None
    return plan.status.capacity.type, plan.status.capacity.product


def test_products_are_tried_in_order_and_from_the_first_again() -> None:
    """On on-demand nodes, with the default of ten minutes for each."""
    workers = {"count": 2, "accelerator": GPU}
    seen = a_spot_run(workers)
    (live,) = seen.ray_clusters
    assert product_of(live) == "h100"
    pods = (a_head(), worker("worker-1", "demand-1", "on-demand"))
    seen = then(replace(seen, pods=(*pods, waiting("worker-2", 60, "on-demand"))), 65)
    assert chosen(reconcile(seen, 659)) == ("OnDemand", None)
    cluster, label, now = dict(live), "on-demand", 661
    for product in ("a100", "l4", "h100"):
        plan = reconcile(seen, now)
        (event,) = [event for event in plan.events if event.reason == "CapacityChanged"]
        assert event.message.startswith(f"New workers go to on-demand nodes with {product}")
        cluster = placed(cluster, plan)
        assert product_of(cluster) == product
        anew = then(seen, now, ray_clusters=(cluster,))
        assert deleted(reconcile(anew, now + 2)) == ["worker-2"]
        label = scheduling_label(cluster)
        seen = then(replace(anew, pods=(*pods, waiting("worker-2", now + 4, label))), now + 5)
        assert reconcile(seen, now + 6).actions == ()
        now += 601
    assert label == "on-demand", "the first one again"
    assert in_the_way(reconcile(seen, now)).reason == "Unschedulable"


def test_the_message_says_which_product_was_not_to_be_had() -> None:
    seen = a_spot_run({"count": 2, "accelerator": GPU})
    pods = (a_head(), worker("worker-1", "demand-1", "on-demand"))
    seen = then(replace(seen, pods=(*pods, waiting("worker-2", 60, "on-demand"))), 65)
    found = reconcile(seen, 661).status.capacity
    assert found is not None
    assert found.message == (
        "New workers go to on-demand nodes with a100: a worker pod has found no on-demand node "
        "with h100 for 600 s"
    )
    assert found.return_time == at(661 + 1800)
    back = reconcile(then(replace(seen, pods=pods), 661), 661 + 1801)
    assert chosen(back) == ("OnDemand", None)


def test_all_products_are_tried_on_spot_nodes_before_on_demand_ones() -> None:
    run = a_run(workers={**SPOT, "accelerator": GPU})
    order = [("Spot", None)]
    status = a_spot_run().run.status.capacity
    assert status is not None
    for _ in range(6):
        kind, product = order[-1]
        known = status.model_copy(update={"type": kind, "product": product})
        found = capacity._following(context_of(Observed(run), 0), known)
        assert found is not None
        order.append(found)
    assert order == [
        ("Spot", None),
        ("Spot", "a100"),
        ("Spot", "l4"),
        ("OnDemand", None),
        ("OnDemand", "a100"),
        ("OnDemand", "l4"),
        ("OnDemand", None),
    ]


def test_losses_before_the_return_count_no_more_though_their_window_is_longer() -> None:
    longer = {**FALLBACK, "withinSeconds": 3600, "returnAfterSeconds": 60}
    seen = a_spot_run({"count": 2, "capacity": {"type": "Spot", "fallback": longer}})
    once = lose(seen, 100, "worker-1", worker("worker-3", "spot-3"))
    fallen = lose(once, 200, "worker-2", worker("worker-4", "demand-1", "on-demand"))
    assert chosen(reconcile(fallen, 210)) == ("OnDemand", None)
    back = then(fallen, 261)
    assert chosen(reconcile(back, 263)) == ("Spot", None)
    assert chosen(reconcile(then(back, 263), 270)) == ("Spot", None)
