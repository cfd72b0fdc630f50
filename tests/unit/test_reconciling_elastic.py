"""A run with workers.minimum: it begins small, goes on with fewer, and is counted by its ranks."""

from collections.abc import Callable
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
    at,
    nodes,
    unix,
)
from support.reconciled import condition, in_the_way, reconcile, then
from trainingrun.api.status import WorkersAtSize
from trainingrun.reconciling import Observed, Plan
from trainingrun.reconciling.model import Delete, ScaleWorkers

ELASTIC = {"count": 2, "minimum": 1, "resizeSeconds": 60}
FULL = "0/3 nodes are available: 3 Insufficient cpu."

HEAD = a_head(ready=True)
READY = a_pod("worker-1", ready=True)
OTHER = a_pod("worker-2", node="spot-2", ready=True)
NO_NODE = a_pod("worker-2", unschedulable=FULL, unschedulable_at=10)
PULLS = a_pod("worker-2", node="spot-2", phase="Pending", ready=False)


def starting(*pods: Any, workers: dict[str, Any] = ELASTIC, replicas: int = 2) -> Observed:
    """An attempt whose driver waits for its pods."""
    return then(
        Observed(a_run(workers=workers)),
        0,
        ray_jobs=(a_ray_job(deployment="Initializing"),),
        ray_clusters=(a_ray_cluster(replicas=replicas, version="7"),),
        pods=pods,
        nodes=nodes(),
    )


def training(*pods: Any, workers: dict[str, Any] = ELASTIC, **document: Any) -> Observed:
    """An attempt that trains, with these pods and this document."""
    return replace(
        starting(*pods, workers=workers),
        ray_jobs=(a_ray_job(status="RUNNING", deployment="Running"),),
        progress=a_progress(**document),
        progress_age_s=0.5,
    )


def scaled(plan: Plan) -> list[tuple[int, tuple[str, ...]]]:
    """Worker pods and deleted pods of each ScaleWorkers."""
    return [(a.pods, a.removed) for a in plan.actions if isinstance(a, ScaleWorkers)]


def test_a_start_waits_ten_seconds_for_a_pod_without_a_node_and_begins_with_the_others():
    seen = starting(HEAD, READY, NO_NODE)
    waits = reconcile(seen, 15)
    assert scaled(waits) == []
    assert waits.requeue_after_s is not None
    assert waits.requeue_after_s <= 5
    (action,) = [a for a in reconcile(seen, 20).actions if isinstance(a, ScaleWorkers)]
    assert (action.pods, action.removed) == (1, ("worker-2",))
    assert (action.ray_cluster.uid, action.version) == ("cluster-1", "7")


def test_a_start_waits_for_the_next_pod_where_nodes_come_one_by_one():
    workers = {"count": 20, "minimum": 2}
    last = a_pod("worker-20", unschedulable=FULL, unschedulable_at=3)

    def began(*ready_at: float) -> list[float]:
        """Seconds, up to 200, at which the pods that are ready would be asked for."""
        came = [
            a_pod(f"worker-{number}", ready=True, ready_at=time)
            for number, time in enumerate(ready_at)
        ]
        seen = starting(HEAD, *came, last, workers=workers, replicas=20)
        late = [
            second for second in range(int(ready_at[-1]), 200) if scaled(reconcile(seen, second))
        ]
        return late[:1]

    assert began(90, 93) == [98]
    assert began(90, 93, 97) == [102]
    assert began(90, 93, *range(98, 155, 5)) == [153], "resizeSeconds after there were two"


@pytest.mark.parametrize(
    "others",
    [(PULLS,), (), (a_pod("worker-2", node="spot-2", ready=True, terminating_at=5),)],
    ids=["it starts", "KubeRay made none", "it leaves"],
)
def test_a_start_waits_for_other_pods_for_resize_seconds(others: tuple[Any, ...]):
    seen = starting(HEAD, READY, *others)
    assert scaled(reconcile(seen, 59)) == []
    assert scaled(reconcile(seen, 60)) == [(1, tuple(pod["metadata"]["name"] for pod in others))]


@pytest.mark.parametrize(
    "pods",
    [
        (HEAD, a_pod("worker-1", ready=False), NO_NODE),
        (a_head(ready=False), READY, NO_NODE),
        (READY, NO_NODE),
        (HEAD, READY, OTHER),
    ],
    ids=["fewer than minimum", "the head starts", "no head", "all are ready"],
)
def test_a_start_waits_for_the_minimum_and_the_head_and_needs_no_other_number(pods: Any):
    assert scaled(reconcile(starting(*pods), 3600)) == []


def test_whole_pods_begin_where_a_pod_has_several_workers():
    workers = {"count": 24, "perPod": 8, "minimum": 16}
    third = a_pod("worker-3", unschedulable=FULL, unschedulable_at=10)
    one = starting(HEAD, READY, third, workers=workers, replicas=3)
    assert scaled(reconcile(one, 3600)) == [], "8 of at least 16 workers"
    two = starting(HEAD, READY, OTHER, third, workers=workers, replicas=3)
    assert scaled(reconcile(two, 20)) == [(2, ("worker-3",))]


def test_what_was_asked_for_is_not_asked_for_again():
    small = starting(HEAD, READY, NO_NODE, replicas=1)
    assert scaled(reconcile(small, 3600)) == []


def test_once_the_driver_is_submitted_all_pods_are_asked_for_until_they_are():
    running = (a_ray_job(status="", deployment="Running"),)
    small = replace(starting(HEAD, READY, replicas=1), ray_jobs=running)
    assert scaled(reconcile(small, 30)) == [(2, ())]
    leaving = a_pod("worker-2", node="spot-2", terminating_at=20)
    both = (a_ray_cluster(replicas=1, removed=("worker-2", "worker-9")),)
    still = replace(small, pods=(HEAD, READY, leaving), ray_clusters=both)
    assert scaled(reconcile(still, 30)) == [(2, ("worker-2",))]
    asked = (a_ray_cluster(replicas=2, removed=("worker-2",)),)
    assert scaled(reconcile(replace(still, ray_clusters=asked), 30)) == []
    gone = replace(small, ray_clusters=asked)
    assert scaled(reconcile(gone, 30)) == [(2, ())], "KubeRay would delete it at each pass"


@pytest.mark.parametrize(
    "change",
    [
        lambda seen: replace(seen, ray_jobs=(a_ray_job(deployment="Suspended", queued=True),)),
        lambda seen: replace(seen, stale={"Pod": "403"}),
        lambda seen: replace(seen, ray_jobs=(a_ray_job(deployment="Failed", status="FAILED"),)),
        lambda seen: replace(seen, ray_clusters=()),
    ],
    ids=["suspended by a queue", "pods unknown", "ended", "no RayCluster"],
)
def test_nothing_is_scaled_where_pods_are_not_waited_for(change: Callable[[Observed], Observed]):
    assert scaled(reconcile(change(starting(HEAD, READY, NO_NODE)), 3600)) == []


def test_a_run_without_a_minimum_waits_for_all_of_its_pods():
    fixed = starting(HEAD, READY, NO_NODE, workers={"count": 2})
    assert scaled(reconcile(fixed, 3600)) == []
    assert reconcile(fixed, 3600).status.workers is None
    assert in_the_way(reconcile(fixed, 3600)).reason == "Unschedulable"


def test_a_pod_that_was_removed_for_the_start_is_no_loss():
    removed = (a_ray_cluster(replicas=1, removed=("worker-2",)),)
    leaving = a_pod("worker-2", node="spot-2", phase="Pending", terminating_at=30)
    seen = replace(starting(HEAD, READY, leaving, replicas=1), ray_clusters=removed)
    disruptions = reconcile(seen, 30).status.disruptions
    assert (disruptions.preemptions, disruptions.history) == (0, [])
    not_asked = replace(seen, ray_clusters=(a_ray_cluster(replicas=2),))
    assert reconcile(not_asked, 30).status.disruptions.preemptions == 1


def test_an_attempt_that_begins_small_is_given_up_where_no_driver_is_submitted():
    small = replace(starting(HEAD, READY, replicas=1), progress_polled_s=700.0)
    waits = then(small, 60)
    assert waits.run.status.seen["hungSince"] == at(60)
    assert reconcile(waits, 659).status.attempts[-1].outcome == "Running"
    assert reconcile(waits, 660).status.attempts[-1].outcome == "Lost"


def test_training_with_fewer_workers_is_ready_and_what_the_others_wait_for_is_said():
    plan = reconcile(training(HEAD, READY, NO_NODE, world_size=1), 70)
    assert plan.status.phase == "Running"
    ready = condition(plan, "Ready")
    assert (ready.status, ready.reason) == ("True", "Training")
    assert ready.message == "1 of 2 workers train"
    waiting = condition(plan, "Waiting")
    assert (waiting.status, waiting.reason) == ("True", "FewerWorkers")
    assert waiting.message.startswith("1 of 2 workers train; Pod worker-2 cannot be scheduled: ")
    assert plan.status.workers is not None
    assert (plan.status.workers.wanted, plan.status.workers.ready) == (2, 1)
    assert plan.status.workers.training == 1


def test_a_pod_that_cannot_start_stalls_no_training_that_goes_on():
    broken = a_pod("worker-2", node="spot-2", waiting=("ErrImagePull", "not found"))
    plan = reconcile(training(HEAD, READY, broken, world_size=1), 70)
    assert condition(plan, "Stalled").status == "False"
    assert "cannot be pulled" in condition(plan, "Waiting").message
    whole = reconcile(training(HEAD, READY, broken, world_size=0, state="Recovering"), 70)
    assert condition(whole, "Stalled").reason == "ImageCannotBePulled"


def test_workers_that_are_back_are_said_to_join_at_a_checkpoint():
    plan = reconcile(training(HEAD, READY, OTHER, world_size=1), 70)
    message = "1 of 2 workers train; the others are ready, and training continues with them at a"
    assert condition(plan, "Waiting").message == f"{message} checkpoint"
    full = reconcile(training(HEAD, READY, OTHER, world_size=2), 70)
    assert condition(full, "Waiting").status == "False"
    assert condition(full, "Ready").message == "2 workers train"


def test_a_bucket_that_does_not_answer_comes_before_fewer_workers():
    seen = training(HEAD, READY, NO_NODE, world_size=1, storage_error="It does not answer")
    assert in_the_way(reconcile(seen, 70)).reason == "StorageUnavailable"


def test_the_history_says_with_how_many_workers_training_went_on():
    full = then(training(HEAD, READY, OTHER), 62)
    leaving = a_pod("worker-2", node="spot-2", ready=True, terminating_at=63)
    lost = then(replace(full, pods=(HEAD, READY, leaving)), 64)
    (before,) = lost.run.status.disruptions.history
    assert (before.reason, before.action) == ("Preempted", "")
    records = [
        {"number": 1, "kind": "Preempted", "time": unix(64), "step": 12, "pod": "worker-2"},
        {
            "number": 2,
            "kind": "Restored",
            "time": unix(66),
            "step": 12,
            "message": "resumed from step 12; 1 worker instead of 2",
        },
    ]
    document = a_progress(world_size=1, step=14, step_time=unix(68), records=records)
    plan = reconcile(replace(lost, pods=(HEAD, READY, NO_NODE), progress=document), 69)
    (loss,) = plan.status.disruptions.history
    assert (loss.lost_steps, plan.status.disruptions.preemptions) == (0, 1)
    assert loss.action == (
        "went on with 1 of 2 workers: resumed from step 12; 1 worker instead of 2, in attempt 1"
    )
    assert plan.status.attempts[-1].outcome == "Running"


def test_a_loss_is_forgotten_though_its_pod_finds_no_node_for_long():
    leaving = a_pod("worker-2", node="spot-2", ready=True, terminating_at=63)
    lost = then(training(HEAD, READY, leaving, world_size=1), 64)
    assert list(lost.run.status.seen["counted"]) == ["uid-1-worker-2"]
    document = a_progress(world_size=1, step=700, step_time=unix(700))
    waits = a_pod("worker-3", unschedulable=FULL, unschedulable_at=70)
    later = replace(lost, pods=(HEAD, READY, waits), progress=document)
    assert "counted" not in reconcile(later, 700).status.seen
    recovering = replace(later, pods=(HEAD, waits), progress=document)
    assert "counted" in reconcile(recovering, 700).status.seen


def test_a_lost_node_is_replaced_while_training_goes_on():
    gone = a_node("spot-2", exists=False)
    seen = replace(training(HEAD, READY, OTHER, world_size=1), nodes=nodes(gone))
    plan = reconcile(seen, 70)
    assert [a.ref.name for a in plan.actions if isinstance(a, Delete)] == ["worker-2"]
    assert plan.status.disruptions.node_losses == 1
    assert plan.status.phase == "Running"


def test_a_restarted_operator_does_not_show_a_smaller_run_as_one_that_recovers():
    running = then(training(HEAD, READY, NO_NODE, world_size=1), 70)
    unread = replace(running, progress=None, progress_age_s=None)
    plan = reconcile(unread, 75)
    assert (plan.status.phase, condition(plan, "Ready").status) == ("Running", "True")
    headless = reconcile(replace(unread, pods=(READY, NO_NODE)), 75)
    assert headless.status.phase != "Running"


def sizes(**seconds: float) -> list[dict[str, float]]:
    """Seconds at each size: one=10.0, two=20.0."""
    numbers = {"one": 1, "two": 2}
    return [{"workers": numbers[name], "seconds": spent} for name, spent in seconds.items()]


def spent(productive: float, **at_sizes: float) -> dict[str, Any]:
    """Fields of a document."""
    return {"seconds": {"productive": productive}, "sizes": sizes(**at_sizes)}


def test_goodput_counts_the_ranks_that_train():
    document = spent(40.0, one=20.0, two=20.0)
    plan = reconcile(training(HEAD, READY, NO_NODE, world_size=1, **document), 70)
    goodput = plan.status.goodput
    assert goodput is not None
    assert goodput.seconds == 60.0
    assert (goodput.productive_seconds, goodput.lost_seconds.fewer_workers) == (30.0, 10.0)
    assert goodput.percent == 50
    assert plan.status.workers is not None
    assert plan.status.workers.sizes == [
        WorkersAtSize(workers=1, seconds=20.0),
        WorkersAtSize(workers=2, seconds=20.0),
    ]


def test_seconds_at_each_size_are_added_up_over_drivers_without_those_done_again():
    first = then(training(HEAD, READY, OTHER, step=40, **spent(40.0, one=20.0, two=20.0)), 70)
    document = {"fencing_token": 2, "resumed_from_step": 30, "step": 31, "step_time": unix(80)}
    second = replace(first, progress=a_progress(**document, **spent(5.0, one=5.0)))
    plan = reconcile(second, 81)
    assert plan.status.workers is not None
    assert plan.status.goodput is not None
    assert [(one.workers, one.seconds) for one in plan.status.workers.sizes] == [
        (1, 25.0),
        (2, 10.0),
    ]
    assert plan.status.goodput.lost_seconds.lost_work == 10.0
    assert plan.status.goodput.productive_seconds == 22.5
    again = reconcile(then(second, 81), 82)
    assert again.status.workers == plan.status.workers, "an older operator's write counts once"


def test_accelerator_seconds_count_the_ranks_that_train():
    workers = {**ELASTIC, "accelerator": {"kind": "nvidia", "count": 4}}
    began = then(starting(HEAD, READY, OTHER, workers=workers), 5)
    small = {"world_size": 1, **spent(40.0, one=20.0, two=20.0)}
    seen = replace(
        began,
        ray_jobs=(a_ray_job(status="RUNNING", deployment="Running"),),
        progress=a_progress(**small),
        progress_age_s=0.5,
    )
    cost = reconcile(seen, 70).status.cost
    assert cost is not None
    assert cost.seconds.training == 20 * 4 + 20 * 8
    assert cost.total_seconds == sum(cost.seconds.model_dump().values())


def test_a_pod_that_waits_beside_a_smaller_training_is_no_waiting_time_of_the_others():
    def waits(minimum: int | None, *pods: Any) -> bool:
        workers = {"count": 3, **({"minimum": minimum} if minimum else {})}
        began = then(starting(*pods, workers=workers, replicas=3), 5)
        return bool(began.run.status.seen["meter"]["held"].get("waits"))

    assert not waits(1, HEAD, READY, NO_NODE)
    assert waits(2, HEAD, READY, NO_NODE)
    assert waits(None, HEAD, READY, OTHER)


def test_the_wait_for_a_queue_ends_with_the_pods_that_begin():
    begun = training(HEAD, READY, NO_NODE, world_size=1, **spent(30.0, one=30.0))
    goodput = reconcile(begun, 70).status.goodput
    assert goodput is not None
    assert goodput.lost_seconds.queue == 3.0
    waits = replace(begun, progress=None)
    assert "queueSeconds" not in reconcile(waits, 70).status.seen


def test_no_worker_is_ready_once_the_attempt_has_ended():
    ended = training(HEAD, READY, state="Succeeded", world_size=1, result={"metrics": {}})
    found = reconcile(ended, 70).status.workers
    assert found is not None
    assert (found.ready, found.training, found.wanted) == (0, 0, 2)
