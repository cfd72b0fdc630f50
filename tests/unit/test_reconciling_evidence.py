"""Each loss is counted once, under its true cause, whichever source shows it first."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import (
    a_head,
    a_node,
    a_pod,
    a_progress,
    a_ray_job,
    at,
    nodes,
    pods,
    unix,
)
from support.reconciled import a_polled_run, reconcile, then
from trainingrun.api.reasons import EventReason
from trainingrun.api.status import Disruptions, LossReason
from trainingrun.reconciling import Observed
from trainingrun.reconciling.losses.signs import why_pod_ended
from trainingrun.reconciling.model import Plan, RunEvent
from trainingrun_protocol.progress import RankRow, Record, RecordKind, RunState

HEAD, ONE, TWO = pods()
NOT_READY = a_node("spot-1", ready=False)
GONE = a_node("spot-1", exists=False)
WELL = a_node("spot-1")


@pytest.mark.parametrize(
    ("pod", "node", "reason"),
    [
        pytest.param(a_pod(), WELL, None, id="runs"),
        pytest.param(
            a_pod(exit_code=137, ended_because="OOMKilled"),
            WELL,
            LossReason.OUT_OF_MEMORY,
            id="OOM",
        ),
        pytest.param(
            a_pod(exit_code=137, ended_because="OOMKilled", terminating_at=9),
            NOT_READY,
            LossReason.OUT_OF_MEMORY,
            id="OOM on a lost node",
        ),
        pytest.param(
            a_pod(disruption="EvictionByEvictionAPI"), WELL, LossReason.PREEMPTED, id="eviction API"
        ),
        pytest.param(
            a_pod(disruption="PreemptionByScheduler"), WELL, LossReason.PREEMPTED, id="scheduler"
        ),
        pytest.param(
            a_pod(disruption="DeletionByTaintManager"),
            WELL,
            LossReason.NODE_LOST,
            id="taint manager",
        ),
        pytest.param(a_pod(disruption="DeletionByPodGC"), GONE, LossReason.NODE_LOST, id="pod GC"),
        pytest.param(
            a_pod(disruption="TerminationByKubelet", reason="Evicted", phase="Failed"),
            WELL,
            LossReason.EVICTED,
            id="kubelet's eviction",
        ),
        pytest.param(
            a_pod(phase="Failed", reason="OutOfnvidia.com/gpu"),
            WELL,
            LossReason.INFRASTRUCTURE_ERROR,
            id="refused by its node",
        ),
        pytest.param(
            a_pod(reason="Terminated", exit_code=137),
            WELL,
            LossReason.PREEMPTED,
            id="node's shutdown: Terminated",
        ),
        pytest.param(
            a_pod(reason="NodeShutdown", phase="Failed"),
            WELL,
            LossReason.PREEMPTED,
            id="node's shutdown: NodeShutdown",
        ),
        pytest.param(a_pod(reason="NodeLost"), WELL, LossReason.NODE_LOST, id="NodeLost"),
        pytest.param(
            a_pod(reason="NodeAffinity", phase="Failed"),
            WELL,
            LossReason.INFRASTRUCTURE_ERROR,
            id="NodeAffinity",
        ),
        pytest.param(a_pod(terminating_at=9), WELL, LossReason.PREEMPTED, id="deleted"),
        pytest.param(
            a_pod(exit_code=137), NOT_READY, LossReason.NODE_LOST, id="killed on a lost node"
        ),
        pytest.param(
            a_pod(exit_code=143), GONE, LossReason.NODE_LOST, id="terminated on a removed node"
        ),
        pytest.param(
            a_pod(exit_code=137),
            a_node(taints=("karpenter.sh/disrupted",)),
            LossReason.NODE_LOST,
            id="killed on a tainted node",
        ),
        pytest.param(
            a_pod(exit_code=137),
            a_node(taints=("DeletionCandidateOfClusterAutoscaler",)),
            LossReason.WORKER_LOST,
            id="killed on a candidate for removal",
        ),
        pytest.param(
            a_pod(exit_code=137), WELL, LossReason.WORKER_LOST, id="killed on a good node"
        ),
        pytest.param(
            a_pod(exit_code=1), NOT_READY, LossReason.WORKER_LOST, id="error on a lost node"
        ),
        pytest.param(a_head(exit_code=1), WELL, LossReason.HEAD_LOST, id="head's error"),
        pytest.param(
            a_pod(exit_code=1, ended_at=5, terminating_at=6),
            WELL,
            LossReason.WORKER_LOST,
            id="error before the deletion",
        ),
        pytest.param(
            a_pod(exit_code=143, ended_at=9, terminating_at=6),
            WELL,
            LossReason.PREEMPTED,
            id="terminated by the deletion",
        ),
    ],
)
def test_the_first_sign_that_holds_says_why_a_pod_ended(
    pod: dict[str, Any], node: Any, reason: LossReason | None
) -> None:
    assert why_pod_ended(pod, node) is reason


def counts(observed: Observed, seconds: float = 60) -> dict[str, int]:
    found: Disruptions = reconcile(observed, seconds).status.disruptions
    return {name: n for name, n in found.to_dict().items() if n and name != "history"}


def records(*reported: dict[str, Any], **document: Any) -> Any:
    numbered = [{"number": n, "time": unix(50), **record} for n, record in enumerate(reported, 1)]
    return a_progress(records=numbered, **document)


def test_a_healthy_attempt_lost_nothing(training: Observed) -> None:
    assert counts(training) == {}


def test_a_worker_that_leaves_is_one_preemption_however_often_it_is_then(
    training: Observed,
) -> None:
    terminating = replace(training, pods=(HEAD, a_pod("worker-1", terminating_at=55), TWO))
    assert counts(terminating) == {"preemptions": 1}
    assert counts(then(terminating)) == {"preemptions": 1}
    assert counts(then(terminating, pods=(HEAD, TWO)), 70) == {"preemptions": 1}


@pytest.mark.parametrize("kind", ["Preempted", "WorkerLost"])
@pytest.mark.parametrize(
    "pod", [pytest.param("worker-1", id="pod named"), pytest.param(None, id="no pod named")]
)
@pytest.mark.parametrize("record_first", [True, False])
@pytest.mark.parametrize("pod_stays", [True, False])
def test_pod_and_runtime_showing_one_loss_count_it_once(
    training: Observed, kind: str, pod: str | None, record_first: bool, pod_stays: bool
) -> None:
    terminating = (HEAD, a_pod("worker-1", terminating_at=55), TWO)
    reported = records({"kind": kind, "pod": pod})
    if record_first:
        between = then(replace(training, progress=reported), pods=terminating)
    else:
        shown = terminating if pod_stays else (HEAD, TWO)
        between = then(replace(training, pods=terminating), pods=shown, progress=reported)
    assert counts(between) == {"preemptions": 1}


def test_a_worker_that_only_the_runtime_saw_dying_is_a_worker_failure(training: Observed) -> None:
    reported = replace(training, progress=records({"kind": "WorkerLost", "pod": "worker-1"}))
    assert counts(reported) == {"workerFailures": 1}
    assert counts(then(reported), 90) == {"workerFailures": 1}


@pytest.mark.parametrize("record_first", [True, False])
def test_several_records_about_one_pod_are_one_loss(training: Observed, record_first: bool) -> None:
    """Each worker group that breaks makes a record, and a pod may end while a second one begins."""
    ended = (HEAD, a_pod("worker-1", exit_code=137), TWO)
    died = {"kind": "WorkerLost", "pod": "worker-1"}
    both = records(died, {**died, "number": 2})
    if record_first:
        between = then(replace(training, progress=both), pods=ended)
    else:
        between = then(replace(training, pods=ended), progress=both)
    assert counts(between) == {"workerFailures": 1}
    assert counts(then(between), 70) == {"workerFailures": 1}


def test_a_new_driver_s_records_are_counted_though_their_numbers_begin_again(
    training: Observed,
) -> None:
    first = replace(training, progress=records({"kind": "WorkerLost", "pod": "worker-1"}))
    second = then(
        first, progress=records({"kind": "WorkerLost", "pod": "worker-2"}, fencing_token=2)
    )
    assert counts(second) == {"workerFailures": 2}
    late = then(second, progress=first.progress)
    assert counts(late) == {"workerFailures": 2}, "an older driver has nothing new to tell"


def test_a_dead_worker_turns_out_to_be_a_lost_node_and_the_count_moves(training: Observed) -> None:
    dead = replace(training, progress=records({"kind": "WorkerLost", "pod": "worker-1"}))
    assert counts(dead) == {"workerFailures": 1}
    silent = then(dead, nodes=nodes(a_node("spot-1", lease_age_s=20.0)))
    silent = replace(silent, progress=dead.progress.model_copy(update={"lost_nodes": ["spot-1"]}))
    assert counts(silent) == {"nodeLosses": 1}


def test_a_node_with_two_pods_is_lost_once(training: Observed) -> None:
    both = (HEAD, a_pod("worker-1"), a_pod("worker-2"))
    lost = replace(training, pods=both, nodes=nodes(GONE))
    assert counts(lost) == {"nodeLosses": 1}
    assert counts(then(lost, pods=(HEAD,))) == {"nodeLosses": 1}


def test_a_head_that_vanishes_is_one_head_loss_and_its_workers_none(training: Observed) -> None:
    gone = then(training, 60, pods=(ONE, TWO))
    assert counts(gone, 61) == {"headLosses": 1}
    forced = (a_pod("worker-1", terminating_at=61, grace=0), a_pod("worker-2", exit_code=1))
    assert counts(then(gone, 61, pods=forced), 62) == {"headLosses": 1}
    replaced = (a_head(created_at=62, uid="new-head"), a_pod("worker-9", created_at=63))
    assert counts(then(gone, 61, pods=replaced), 64) == {"headLosses": 1}


def test_a_worker_that_was_lost_long_before_its_head_stays_a_loss_of_its_own(
    training: Observed,
) -> None:
    """Its kubelet hangs: the pod is still there when the head is lost."""
    stays = a_pod("worker-1", terminating_at=60, grace=30)
    lost = then(training, 60, pods=(HEAD, stays, TWO))
    assert counts(lost, 61) == {"preemptions": 1}
    goes_on = then(lost, 61, pods=(HEAD, stays, TWO))
    headless = then(goes_on, 360, pods=(stays, TWO))
    assert counts(headless, 361) == {"preemptions": 1, "headLosses": 1}


def test_a_head_on_a_lost_node_is_one_node_loss(training: Observed) -> None:
    silent = replace(
        training,
        nodes=nodes(a_node("base-1", lease_age_s=30.0)),
        progress=a_progress(),
        progress_failing_s=8.0,
    )
    assert counts(silent) == {"nodeLosses": 1}
    assert counts(then(silent, pods=(ONE, TWO)), 62) == {"nodeLosses": 1}


def test_a_head_that_leaves_in_peace_is_counted_when_it_is_asked_to(training: Observed) -> None:
    asked = then(training, pods=(a_head(terminating_at=60), ONE, TWO))
    assert counts(asked, 61) == {"headLosses": 1}
    assert counts(then(asked, 61, pods=(ONE, TWO)), 90) == {"headLosses": 1}


def test_a_queue_that_takes_everything_back_is_one_preemption(training: Observed) -> None:
    left = then(
        training,
        ray_jobs=(a_ray_job(queued=True),),
        pods=(a_head(terminating_at=60), a_pod("worker-1", terminating_at=60), TWO),
    )
    assert counts(left) == {"preemptions": 1}
    waiting = then(left, pods=())
    assert reconcile(waiting).status.phase == "Queued"
    assert counts(waiting) == {"preemptions": 1}
    again = then(waiting, ray_jobs=(a_ray_job(),), pods=(a_head(created_at=90, uid="new"),))
    assert counts(again) == {"preemptions": 1}


def test_what_the_driver_records_of_a_queues_suspension_is_the_same_preemption(
    training: Observed,
) -> None:
    reported = records({"kind": "Preempted", "pod": "worker-1"}, {"kind": "Preempted"})
    left = then(
        training,
        ray_jobs=(a_ray_job(queued=True),),
        pods=(a_head(terminating_at=60),),
        progress=reported,
    )
    again = then(left, 90, ray_jobs=(a_ray_job(),), pods=(a_head(created_at=90, uid="new"),))
    assert counts(again, 100) == {"preemptions": 1}


def test_a_node_that_goes_after_a_queue_took_everything_back_costs_nothing_more(
    training: Observed,
) -> None:
    left = then(
        training,
        ray_jobs=(a_ray_job(queued=True),),
        pods=(a_head(terminating_at=60), a_pod("worker-1", terminating_at=60)),
    )
    gone = then(left, 65, nodes=nodes(GONE))
    assert counts(gone) == {"preemptions": 1}


def test_a_record_that_is_read_after_a_long_silence_is_of_the_pod_that_was_counted(
    training: Observed,
) -> None:
    """The head could not be reached from before the loss until fifteen minutes after it."""
    killed = a_pod("worker-1", exit_code=137, ended_because="OOMKilled")
    lost = then(training, pods=(HEAD, killed, TWO), progress=a_progress(), progress_age_s=10.0)
    replaced = then(lost, 60, pods=(HEAD, a_pod("worker-9", created_at=70), TWO))
    silent = then(replace(replaced, progress_age_s=910.0), 960)
    heard = records({"kind": "WorkerLost", "pod": "worker-1", "time": unix(55)})
    assert counts(replace(silent, progress=heard, progress_age_s=0.5), 962) == {"outOfMemory": 1}


@pytest.mark.parametrize("known", [pods(), ()], ids=["as they were", "none"])
def test_a_queue_that_takes_everything_back_while_no_pod_can_be_seen_is_one_preemption(
    training: Observed, known: tuple[Any, ...]
) -> None:
    """The queue lets the attempt continue before the watch of pods works again."""
    blind = then(
        training,
        ray_jobs=(a_ray_job(queued=True),),
        pods=known,
        stale={"Pod": "pods is forbidden"},
        progress=records({"kind": "Preempted", "pod": "worker-1"}),
    )
    assert counts(blind) == {"preemptions": 1}
    seen = then(blind, 90, ray_jobs=(a_ray_job(),), pods=(), stale={})
    assert counts(seen, 95) == {"preemptions": 1}


def test_workers_that_end_while_their_heads_node_is_silent_are_no_losses_of_their_own(
    training: Observed,
) -> None:
    silent = nodes(a_node("base-1", lease_age_s=60.0))
    ended = pods()[0], a_pod("worker-1", exit_code=1), a_pod("worker-2", exit_code=1)
    assert counts(replace(training, nodes=silent, pods=ended)) == {}


def test_pods_that_are_long_gone_are_forgotten(training: Observed) -> None:
    terminating = replace(training, pods=(HEAD, a_pod("worker-1", terminating_at=55), TWO))
    remembered = then(terminating, pods=(HEAD, TWO))
    assert reconcile(remembered).status.seen["counted"]
    assert reconcile(remembered, 1000).status.seen["counted"], "the attempt may still end of it"
    new = a_pod("worker-3", created_at=70)
    replaced = replace(remembered, pods=(HEAD, TWO, new), progress=a_progress())
    assert "counted" not in reconcile(replaced, 1000).status.seen


def test_an_attempt_that_ends_of_a_loss_long_ago_does_not_count_it_again(
    training: Observed,
) -> None:
    away = then(replace(training, pods=(ONE, TWO)), 60, pods=(ONE,))
    gave_up = a_ray_job(deployment="Failed", reason="JobStatusCheckTimeoutExceeded")
    ended = reconcile(replace(away, ray_jobs=(gave_up,)), 2000).status
    assert ended.attempts[-1].outcome == "Lost"
    assert (ended.disruptions.head_losses, ended.seen.get("otherLosses", 0)) == (1, 0)


def test_an_overruled_setting_of_the_script_is_one_event_and_no_loss(training: Observed) -> None:
    message = "FailureConfig(max_failures=3) of the script is overruled: -1 is used, since …"
    reported = records({"kind": "SettingOverruled", "message": message})
    first = replace(training, progress=reported)
    assert reconcile(first).events == (RunEvent("Warning", EventReason.SETTING_OVERRULED, message),)
    assert counts(first) == {}
    assert reconcile(replace(then(first), progress=reported), 70).events == ()


BEGINS = {"kind": "Restored", "message": "resumed from step 0"}


@pytest.mark.parametrize(
    ("step", "trials"), [(0, 1), (None, 2)], ids=["a run", "two trials of a sweep"]
)
def test_what_begins_is_not_said_to_be_restored(
    training: Observed, step: int | None, trials: int
) -> None:
    def events(*after: dict[str, Any], **document: Any) -> list[str]:
        begun = [{**BEGINS, "step": step}] * trials
        reported = records(*begun, *({"step": step, **one} for one in after), **document)
        return [
            event.reason.value for event in reconcile(replace(training, progress=reported)).events
        ]

    assert events() == []
    assert events({"kind": "WorkerLost"}, BEGINS) == ["WorkerLost", "Restored"]
    assert events(fencing_token=2) == ["Restored"] * trials, "a later driver: what was done is lost"


def test_a_group_that_begins_again_without_a_loss_is_said_to(training: Observed) -> None:
    """As after an outage of the bucket."""
    again = {"kind": "Restored", "message": "resumed from step 0; 5 steps are done again"}
    reported = records({**BEGINS, "step": 0}, {**again, "step": 0})
    (event,) = reconcile(replace(training, progress=reported)).events
    assert event.message == again["message"]


def test_a_record_is_not_counted_again_once_its_pod_is_forgotten(training: Observed) -> None:
    reported = records(
        {"kind": "WorkerLost", "pod": "worker-1"}, {"kind": "Restored", "message": "at 4"}
    )
    polled = replace(training, progress=reported, pods=(HEAD, TWO))
    assert [event.reason for event in reconcile(polled).events] == ["WorkerLost", "Restored"]
    forgotten = then(then(polled), 500)
    much_later = then(forgotten, 1000, pods=(HEAD, TWO))
    again = replace(much_later, progress=reported)
    assert counts(again, 1010) == {"workerFailures": 1}
    assert reconcile(again, 1010).events == ()


# A process that ends, and its pod that lives on.


def died(*times: float) -> Any:
    """Rank 0 has died at these times, each in a worker group that began 30 s before."""
    died = {"kind": "WorkerLost", "pod": "worker-1", "node": "spot-1", "message": "rank 0 died"}
    records = [
        {"number": n, "time": unix(time), "group_time": unix(time - 30), **died}
        for n, time in enumerate(times, 1)
    ]
    return a_progress(records=records)


def lost(plan: Plan) -> list[tuple[str, str]]:
    return [(loss.reason.value, loss.time) for loss in plan.status.disruptions.history]


def test_each_death_of_a_rank_in_one_living_pod_is_counted() -> None:
    seen = then(replace(a_polled_run(), progress=died(100)), 101)
    plan = reconcile(replace(seen, progress=died(100, 700)), 701)
    assert plan.status.disruptions.worker_failures == 2
    assert lost(plan) == [("WorkerLost", at(100)), ("WorkerLost", at(700))]
    both = then(replace(seen, progress=died(100, 700)), 701)
    again = reconcile(replace(both, progress=died(100, 700, 710)), 711)
    assert again.status.disruptions.worker_failures == 2, "no worker group began in between"


def test_a_pod_that_ends_hours_after_a_rank_died_in_it_is_another_loss() -> None:
    seen = then(replace(a_polled_run(), progress=died(100)), 101)
    seen = then(replace(seen, progress=died(100, 7200)), 7201)
    gone = replace(seen, pods=(HEAD, a_pod("worker-1", phase="Failed", exit_code=1), TWO))
    for now in (7202, 9000):  # it is the same pod still
        plan = reconcile(gone, now)
        assert plan.status.disruptions.worker_failures == 2
        assert lost(plan) == [("WorkerLost", at(100)), ("WorkerLost", at(7200))]
        gone = then(gone, now)


def test_a_pod_that_is_deleted_hours_after_a_rank_died_in_it_is_another_loss_at_once() -> None:
    """Also where it is seen before the driver has recorded it: a rank has trained there since."""
    seen = then(replace(a_polled_run(), progress=died(100)), 101)
    restored = Record(number=2, kind=RecordKind.RESTORED, time=unix(110))
    trains_again = died(100).model_copy(
        update={
            "records": [*died(100).records, restored],
            "step_time": unix(7190),
            "ranks": [RankRow(rank=0, pod="worker-1")],
        }
    )
    gone = replace(
        then(replace(seen, progress=trains_again), 7191),
        pods=(HEAD, a_pod("worker-1", terminating_at=7200), TWO),
    )
    first = reconcile(gone, 7201)
    assert lost(first) == [("WorkerLost", at(100)), ("Preempted", at(7201))]
    third = died(100, 7202).records[1].model_copy(update={"number": 3})
    records = [*trains_again.records, third]
    told = trains_again.model_copy(update={"records": records, "state": RunState.RECOVERING})
    later = reconcile(replace(then(gone, 7201), progress=told), 7203)
    assert lost(later) == [("WorkerLost", at(100)), ("Preempted", at(7201))]
    assert later.status.disruptions.worker_failures == 1


def test_an_error_of_ray_s_controller_is_counted_by_its_record(training: Observed) -> None:
    message = "Ray's controller raised ValueError (train.py:9): no"
    record = {
        "number": 1,
        "kind": "InfrastructureError",
        "time": unix(60),
        "message": message,
        "group_time": unix(30),
    }
    plan = reconcile(replace(training, progress=a_progress(records=[record])), 61)
    assert plan.status.disruptions.worker_failures == 1
    assert plan.status.restarts == 0
    (loss,) = plan.status.disruptions.history
    assert (loss.reason, loss.signs) == (LossReason.INFRASTRUCTURE_ERROR, message)
    assert [event.reason for event in plan.events] == ["InfrastructureError"]


# A loss that passes before it has ended the pods that it explains.


def goes_on(seen: Observed, *times: float, **document: Any) -> Observed:
    """The training goes on, at these times."""
    for time in times:
        told = a_progress(**{"step": round(time), "step_time": unix(time), **document})
        seen = then(replace(seen, progress=told), time)
    return seen


def a_node_back_before_its_pod_was_deleted(**back: Any) -> Observed:
    """Two signs show its loss, the operator dies between the status and the deletion of worker-1,
    and the next one finds the node as it was.
    """
    silent = nodes(a_node("spot-1", lease_age_s=30.0))
    flaps = replace(a_polled_run(), nodes=silent, progress=a_progress(lost_nodes=["spot-1"]))
    assert counts(flaps) == {"nodeLosses": 1}
    return replace(then(flaps), **{"nodes": nodes(), **back})


def suspended_and_resumed(**resumed: Any) -> Observed:
    """By a queue, before KubeRay has acted."""
    suspended = then(replace(a_polled_run(), ray_jobs=(a_ray_job(queued=True),)), 60)
    jobs = (a_ray_job(status="RUNNING", deployment="Running"),)
    return replace(suspended, **{"ray_jobs": jobs, **resumed})


PREEMPTED = (HEAD, a_pod("worker-1", terminating_at=2000), TWO)
CRASHED = (a_head(exit_code=1, ended_at=2000), ONE, TWO)
FULL = (HEAD, a_pod("worker-1", exit_code=137, ended_because="OOMKilled", ended_at=2000), TWO)


@pytest.mark.parametrize("pods", [PREEMPTED, FULL], ids=["preempted", "out of memory"])
def test_a_pod_whose_node_came_back_in_time_is_a_loss_of_its_own_later(pods: Any) -> None:
    seen = goes_on(a_node_back_before_its_pod_was_deleted(), 70, 100, 200)
    alone = counts(replace(goes_on(a_polled_run(), 70, 100, 200), pods=pods), 2001)
    assert counts(replace(seen, pods=pods), 2001) == {"nodeLosses": 1, **alone}
    assert sum(alone.values()) == 1


@pytest.mark.parametrize(
    ("pods", "loss"),
    [
        pytest.param(PREEMPTED, {"preemptions": 2}, id="preempted"),
        pytest.param(CRASHED, {"preemptions": 1, "headLosses": 1}, id="head"),
        pytest.param(FULL, {"preemptions": 1, "outOfMemory": 1}, id="out of memory"),
    ],
)
def test_what_is_lost_after_a_queue_changed_its_mind_is_counted(
    pods: Any, loss: dict[str, int]
) -> None:
    seen = goes_on(suspended_and_resumed(), 66, 200)
    assert counts(replace(seen, pods=pods), 2001) == loss


def test_what_the_driver_tells_of_a_node_that_is_back_already_is_the_loss_of_the_node() -> None:
    """It has done steps before it missed the rank there."""
    seen = goes_on(a_node_back_before_its_pod_was_deleted(), 70, 100)
    told = records({"kind": "WorkerLost", "pod": "worker-1", "time": unix(101)}, step=20)
    assert counts(replace(seen, progress=told), 110) == {"nodeLosses": 1}


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"nodes": nodes(a_node("spot-1", ready=False))}, id="the node is not ready"),
        pytest.param({"nodes": nodes(), "stale": {"Node": "forbidden"}}, id="it cannot be seen"),
        pytest.param({"pods": (HEAD, a_pod("worker-1", ready=False), TWO)}, id="Ray has ended"),
        pytest.param({"pods": (HEAD, a_pod("worker-1", reason="NodeLost"), TWO)}, id="a pod says"),
    ],
)
def test_a_pod_that_may_still_go_with_its_node_is_not_counted_twice(state: dict[str, Any]) -> None:
    """As training goes on without it, and its deletion is refused."""
    seen = goes_on(a_node_back_before_its_pod_was_deleted(**state), 70, 200)
    gone = replace(seen, nodes=nodes(), stale={}, pods=PREEMPTED)
    assert counts(gone, 2001) == {"nodeLosses": 1}


def test_a_pod_from_which_ray_gets_no_heartbeat_still_goes_with_its_node() -> None:
    lost = {"lost_nodes": ["spot-1"]}
    seen = goes_on(a_node_back_before_its_pod_was_deleted(), 70, 200, **lost)
    assert counts(replace(seen, pods=PREEMPTED), 2001) == {"nodeLosses": 1}


def test_pods_that_kuberay_is_about_to_end_still_go_with_the_suspension() -> None:
    """It ends what it has begun to suspend, whatever the queue says meanwhile."""
    ending = (a_ray_job(status="RUNNING", deployment="Suspending"),)
    seen = goes_on(suspended_and_resumed(ray_jobs=ending), 66, 200)
    left = tuple(a_pod(name, terminating_at=201) for name in ("worker-1", "worker-2"))
    assert counts(replace(seen, pods=(a_head(terminating_at=201), *left)), 202) == {
        "preemptions": 1
    }
