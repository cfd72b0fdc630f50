"""status.cost and goodput: every second is somewhere once, and prices make money of it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    pods,
    unix,
)
from support.reconciled import as_kept, begins, condition
from trainingrun.api.defaults import AppliedDefaults
from trainingrun.api.status import Cost, RunStatus
from trainingrun.reconciling import Observed, Plan, ReconcileSettings, plan
from trainingrun.reconciling.model import Delete, NodePrice, RequestSuspend
from trainingrun.rendering import RenderSettings
from trainingrun_protocol.progress import Failure, RunState

INSTANCE = "node.kubernetes.io/instance-type"
CAPACITY = "trainingrun.dev/capacity"
PRICES = (
    NodePrice(labels={INSTANCE: "gpu", CAPACITY: "spot"}, per_hour=36.0, on_demand_per_hour=108.0),
    NodePrice(labels={INSTANCE: "gpu"}, per_hour=108.0),
    NodePrice(labels={INSTANCE: "small"}, per_hour=3.6),
)
SPOT = {INSTANCE: "gpu", CAPACITY: "spot"}


def priced(observed: Observed, seconds: float, prices: tuple[NodePrice, ...] = PRICES) -> Plan:
    """One reconcile of an operator with prices, of whole objects and of what is kept."""
    settings, now = ReconcileSettings(prices=prices), T0 + timedelta(seconds=seconds)
    planned = plan(observed, RenderSettings(), settings, now)
    assert plan(as_kept(observed), RenderSettings(), settings, now) == planned
    return planned


def later(
    observed: Observed,
    seconds: float,
    prices: tuple[NodePrice, ...] = PRICES,
    **changes: Any,
) -> Observed:
    """What is observed once the status is written, with changes."""
    written = priced(observed, seconds, prices).status.to_dict()
    run = observed.run.model_copy(update={"status": RunStatus.model_validate(written)})
    return replace(observed, run=run, **changes)


def cost(observed: Observed, seconds: float, prices: tuple[NodePrice, ...] = PRICES) -> Cost:
    found = priced(observed, seconds, prices).status.cost
    assert found
    return found


def on_priced_nodes(
    prices: tuple[NodePrice, ...] = PRICES, created_at: float = 0, **spec: Any
) -> Observed:
    """Two workers on whole spot nodes and the head on half a small one, since second 10."""
    gpu = {"labels": SPOT, "allocatable": {"cpu": 8.0, "nvidia.com/gpu": 4.0}}
    small = {"labels": {INSTANCE: "small"}, "allocatable": {"cpu": 4.0}}
    held = {"nvidia.com/gpu": "4", "cpu": "1"}
    begun = later(
        Observed(a_run(**spec)),
        0,
        prices,
        ray_jobs=(a_ray_job(status="RUNNING"),),
        ray_clusters=(a_ray_cluster(),),
        pods=(
            a_head(requests={"cpu": "2"}, created_at=created_at),
            a_pod("worker-1", requests=held, created_at=created_at),
            a_pod("worker-2", node="spot-2", requests=held, created_at=created_at),
        ),
        nodes=nodes(a_node("base-1", **small), a_node("spot-1", **gpu), a_node("spot-2", **gpu)),
        progress_age_s=0.5,
    )
    return later(begun, 10, prices)


def trained(step_time: float, productive: float, **seconds: float) -> Any:
    told = {"productive": productive, **seconds}
    return a_progress(step_time=unix(step_time), seconds=told)


FOUR_GPUS = {"count": 2, "accelerator": {"kind": "nvidia", "count": 4}}


def test_accelerator_seconds_are_by_cause_and_add_up() -> None:
    begun = on_priced_nodes(workers=FOUR_GPUS)
    trains = replace(begun, progress=trained(70, 40, checkpoint=5.0))
    found = cost(trains, 71)
    assert (found.unit, found.total_seconds) == ("accelerator", 8 * 60)
    assert found.seconds.to_dict() == {
        "training": 320.0,
        "saving": 40.0,
        "lost": 0.0,
        "starting": 120.0,
        "waiting": 0.0,
    }
    again = later(trains, 71)
    assert priced(again, 90).status == again.run.status, "the clock alone writes nothing"
    lost = replace(again, progress=trained(130, 60, checkpoint=5.0, lost_work=10.0))
    seconds = cost(lost, 131).seconds
    assert (seconds.training, seconds.saving, seconds.starting) == (480.0, 40.0, 120.0)
    assert sum(seconds.model_dump().values()) == 8 * 120


def test_a_head_that_tells_of_losses_that_never_were_lowers_no_price() -> None:
    honest = replace(on_priced_nodes(workers=FOUR_GPUS), progress=trained(70, 30))
    records = [
        {"number": n, "kind": "Preempted", "time": 1e11, "pod": f"none-{n}", "group_time": 0}
        for n in range(1, 11)
    ]
    told = a_progress(step_time=unix(70), seconds={"productive": 30}, records=records)
    forged = later(replace(honest, progress=told), 71)
    assert (
        forged.run.status.seen["meter"]["held"]
        == later(honest, 71).run.status.seen["meter"]["held"]
    )


def test_a_run_without_accelerators_counts_its_workers() -> None:
    found = cost(replace(on_priced_nodes(), progress=trained(70, 40)), 71)
    assert (found.unit, found.total_seconds) == ("worker", 120)


def test_each_pod_costs_its_share_of_its_node() -> None:
    found = cost(replace(on_priced_nodes(), progress=trained(70, 30)), 71)
    assert found.currency == "USD"
    # Two whole spot nodes for 36 an hour, and half of one for 3.6: a minute.
    assert found.amount == found.at_least == pytest.approx((36 + 36 + 1.8) / 60)
    assert found.wasted == pytest.approx(found.amount / 2)
    assert found.saved_by_spot == pytest.approx(2 * 72 / 60)


def test_what_has_no_price_is_unknown_and_not_zero() -> None:
    begun = on_priced_nodes(PRICES[:2])
    found = cost(replace(begun, progress=trained(70, 30)), 71, PRICES[:2])
    assert (found.amount, found.wasted, found.saved_by_spot) == (None, None, None)
    assert found.at_least == pytest.approx(72 / 60)


def test_without_prices_there_is_no_money() -> None:
    found = cost(replace(on_priced_nodes(()), progress=trained(70, 30)), 71, ())
    assert (found.currency, found.amount, found.at_least) == (None, None, None)
    assert found.total_seconds == 120


def test_spot_nodes_without_an_on_demand_price_save_an_unknown_amount() -> None:
    prices = (NodePrice(labels={INSTANCE: "gpu"}, per_hour=36.0), PRICES[2])
    begun = on_priced_nodes(prices)
    found = cost(replace(begun, progress=trained(70, 30)), 71, prices)
    assert found.amount is not None
    assert found.saved_by_spot is None


def test_pods_that_wait_for_others_cost_and_pods_without_a_node_do_not() -> None:
    pending = a_pod("worker-2", unschedulable="no node")
    begun = on_priced_nodes()
    waits = later(replace(begun, pods=(*begun.pods[:2], pending)), 10)
    complete = later(replace(waits, pods=begun.pods), 40)
    found = cost(replace(complete, progress=trained(70, 10)), 71)
    assert found.seconds.waiting == 30
    assert found.total_seconds == 30 + 2 * 30


def test_a_lost_node_costs_nothing_more() -> None:
    begun = later(replace(on_priced_nodes(), progress=trained(70, 30)), 71)
    gone = a_node("spot-2", exists=False, ready=False, labels=SPOT)
    lost = later(replace(begun, nodes=nodes(gone), confirmed=True), 80)
    after = cost(replace(lost, progress=trained(120, 50)), 121)
    assert after.total_seconds == 2 * 70 + 40


def test_a_node_that_is_deleted_before_its_pods_leaves_the_cost_known() -> None:
    begun = later(replace(on_priced_nodes(), progress=trained(70, 30)), 71)
    lost = later(begun, 80)  # `cluster.nodes` has its former state for so long
    gone = a_node("spot-2", exists=False, ready=False, labels=SPOT)
    after = cost(replace(lost, nodes={**begun.nodes, **nodes(gone)}, confirmed=True), 86)
    # Until 86 two spot nodes and half a small one.
    assert after.amount == after.at_least == pytest.approx(73.8 / 3600 * (86 - 10), rel=1e-3)


def test_pods_that_are_left_after_the_end_are_counted_until_they_are_gone() -> None:
    trains = later(replace(on_priced_nodes(), progress=trained(70, 30)), 71)
    done = a_progress(state="Succeeded", step_time=unix(80), seconds={"productive": 40.0})
    ended = later(replace(trains, progress=done), 90)
    assert ended.run.status.completion_time is not None
    assert ended.run.status.cost
    assert ended.run.status.cost.total_seconds == 2 * 80
    assert priced(ended, 95).status.cost == ended.run.status.cost
    gone = later(replace(ended, pods=()), 100)
    assert gone.run.status.cost
    assert gone.run.status.cost.total_seconds == 2 * 90
    assert priced(gone, 200).status.cost == gone.run.status.cost


def test_nothing_is_counted_while_the_watches_are_out_of_date_and_all_of_it_afterwards() -> None:
    begun = later(replace(on_priced_nodes(), progress=trained(70, 30)), 71)
    stale = replace(begun, stale={"Pod": "403"}, progress=trained(100, 50))
    assert priced(stale, 101).status.cost == begun.run.status.cost
    assert cost(replace(stale, stale={}), 101).total_seconds == 2 * 90


def ended_while_no_operator_ran(status: str, message: str = "", **spec: Any) -> Observed:
    """Ended at second 200, its pods freed by KubeRay at 800, and nothing seen since 71."""
    trains = later(replace(on_priced_nodes(**spec), progress=trained(70, 30)), 71)
    deployment = "Complete" if status == "SUCCEEDED" else "Failed"
    job = a_ray_job(status=status, deployment=deployment, message=message)
    job["spec"]["ttlSecondsAfterFinished"] = 600
    job["status"]["endTime"] = at(200)
    return replace(
        trains,
        ray_jobs=(job,),
        ray_clusters=(),
        pods=(),
        nodes={},
        progress=None,
        progress_age_s=None,
        confirmed=True,
    )


def test_a_run_that_ended_while_no_operator_ran_has_used_and_taken_no_more() -> None:
    done = later(ended_while_no_operator_ran("SUCCEEDED"), 36_000).run.status
    assert (done.phase, done.completion_time) == ("Succeeded", at(200))
    assert done.cost
    assert done.cost.total_seconds == 2 * (800 - 10)
    assert done.cost.amount == pytest.approx(73.8 / 3600 * (800 - 10), rel=1e-3)
    assert done.goodput
    assert (done.goodput.seconds, done.goodput.percent) == (70, 42), "nobody knows of the rest"


@pytest.mark.parametrize(
    ("status", "message", "phase", "reason"),
    [
        ("SUCCEEDED", "Job finished successfully.", "Succeeded", None),
        ("FAILED", "Job entrypoint command failed with exit code 1", "Failed", "ApplicationError"),
    ],
)
@pytest.mark.parametrize("asked_at", [None, 801], ids=["freed", "being freed"])
def test_pods_that_kuberay_frees_after_the_driver_s_end_are_no_losses(
    status: str, message: str, phase: str, reason: str | None, asked_at: float | None
) -> None:
    none = {"maxPreemptions": 0, "maxRestarts": 0}
    seen = ended_while_no_operator_ran(status, message, failures=none)
    if asked_at is not None:
        left = (a_head(terminating_at=asked_at), a_pod("worker-1", terminating_at=asked_at))
        seen = replace(seen, pods=left)
    ended = later(seen, 36_000).run.status
    assert (ended.phase, ended.attempts[-1].reason) == (phase, reason)
    assert (ended.disruptions.head_losses, ended.disruptions.preemptions) == (0, 0)


def test_a_training_that_is_done_fails_by_no_loss_that_is_found_with_its_end() -> None:
    """Its head was drained and in its last 35 s: its document can no longer be read."""
    seen = ended_while_no_operator_ran("SUCCEEDED", failures={"maxPreemptions": 0})
    ended = later(replace(seen, pods=(a_head(terminating_at=190),)), 201).run.status
    assert (ended.phase, ended.disruptions.head_losses) == ("Succeeded", 1)
    # Pods of which the same is counted while the driver's document is awaited.
    drained = (a_head(), a_pod("worker-1", terminating_at=190))
    awaited = later(replace(seen, pods=drained), 201)
    assert awaited.run.status.disruptions.preemptions == 1
    assert awaited.run.status.phase not in ("Failed", "Succeeded")
    assert later(awaited, 240).run.status.phase == "Succeeded"
    failed = ended_while_no_operator_ran("FAILED", failures={"maxPreemptions": 0})
    assert later(replace(failed, pods=drained), 201).run.status.phase == "Failed"


def test_the_result_names_nothing_from_before_the_driver_s_last_document() -> None:
    old = a_progress(
        metrics={"loss": 9.9}, checkpoint={"uri": "s3://b/old", "step": 10, "time": unix(60)}
    )
    seen = ended_while_no_operator_ran("SUCCEEDED")
    unread = later(replace(seen, progress=old, progress_age_s=35_900.0), 36_000).run.status
    assert unread.checkpoint
    assert (unread.phase, unread.checkpoint.uri) == ("Succeeded", "s3://b/old")
    assert unread.result
    assert (unread.result.metrics, unread.result.checkpoint_uri) == ({}, None)


def test_pods_that_kuberay_has_not_freed_cost_until_now() -> None:
    ended = replace(ended_while_no_operator_ran("SUCCEEDED"), pods=pods(), nodes=nodes())
    done = later(later(ended, 36_000), 36_030).run.status
    assert done.completion_time == at(200)
    assert done.cost
    assert done.cost.total_seconds == 2 * (36_030 - 10)


def test_an_attempt_that_failed_while_no_operator_ran_spends_no_budget_afterwards() -> None:
    lost = ended_while_no_operator_ran("FAILED", budget={"amount": 20.0})
    planned = priced(lost, 36_000)
    assert planned.status.running_attempt is None
    assert not [event for event in planned.events if event.reason == "BudgetSpent"]
    gone = replace(later(lost, 36_000), ray_jobs=())
    assert begins(priced(gone, 36_100)) == 2


def test_a_run_that_failed_while_no_operator_ran_ended_with_its_last_attempt() -> None:
    none = {"maxRestarts": 0, "maxPreemptions": 0}
    failed = later(ended_while_no_operator_ran("FAILED", failures=none), 36_000)
    assert (failed.run.status.phase, failed.run.status.completion_time) == ("Failed", at(200))
    assert failed.run.status.goodput
    assert failed.run.status.goodput.seconds == 70, "nobody knows of the rest"


def test_goodput_is_up_to_the_end_once_the_driver_has_told_it() -> None:
    told = trained(180, 140).model_copy(update={"state": RunState.SUCCEEDED})
    ended = replace(ended_while_no_operator_ran("SUCCEEDED"), progress=told)
    goodput = later(ended, 36_000).run.status.goodput
    assert goodput
    assert (goodput.seconds, goodput.percent) == (200, 70)


def test_of_a_run_whose_driver_was_never_read_no_goodput_is_known() -> None:
    unread = replace(ended_while_no_operator_ran("SUCCEEDED"), run=on_priced_nodes().run)
    done = later(unread, 36_000).run.status
    assert (done.phase, done.goodput) == ("Succeeded", None)


def test_goodput_ends_with_the_last_step_where_another_driver_finds_the_training_done() -> None:
    """What the former one did after that is not known."""
    lost = later(ended_while_no_operator_ran("FAILED"), 300)
    begun = later(replace(lost, ray_jobs=()), 320)
    done = a_progress(2, fencing_token=0, state="Succeeded", step=0, step_time=None, seconds={})
    seen = replace(begun, ray_jobs=(a_ray_job(2),), pods=pods(2), progress=done)
    status = later(seen, 400).run.status
    assert (status.phase, status.goodput) == ("Succeeded", lost.run.status.goodput)


def test_recoveries_that_no_operator_saw_are_recovery_and_not_startup() -> None:
    """It was away from before the first step until after several of them."""
    begun = on_priced_nodes()
    found = later(replace(begun, progress=trained(660, 30, startup=20, recovery=570)), 661)
    again = later(replace(found, progress=trained(760, 130, startup=20, recovery=570)), 761)
    for seen in (found, again):
        goodput, spent = seen.run.status.goodput, seen.run.status.cost
        assert goodput
        assert (goodput.lost_seconds.startup, goodput.lost_seconds.recovery) == (57, 570)
        assert spent
        assert (spent.seconds.starting, spent.seconds.lost) == (2 * 50, 2 * 570)


GRID: dict[str, Any] = {
    "search": "grid",
    "metric": "loss",
    "mode": "min",
    "space": [{"name": "lr", "values": [0.1, 0.2]}],
}


def a_sweep(trials_at_once: int, workers: int) -> Observed:
    """Its pods have had their nodes since second 10."""
    swept = {**GRID, "concurrency": trials_at_once}
    return on_priced_nodes(created_at=7, sweep=swept, workers={"count": workers})


def test_in_a_sweep_the_start_of_each_trial_is_startup() -> None:
    """One after the other: each starts in 18 s, and Ray Tune takes 1 s from one to the next."""
    seen = a_sweep(1, workers=2)
    for now, productive, startup in (
        (30, 0.5, 18),
        (60, 30.5, 18),
        (79.5, 31, 36),
        (110, 61.5, 36),
    ):
        seen = later(replace(seen, progress=trained(now, productive, startup=startup)), now + 1)
    goodput, spent = seen.run.status.goodput, seen.run.status.cost
    assert goodput
    assert spent
    assert seen.run.status.disruptions.history == []
    assert (goodput.lost_seconds.startup, goodput.lost_seconds.recovery) == (37.5, 1)
    assert (spent.seconds.starting, spent.seconds.lost) == (2 * 37.5, 2 * 1)


def test_trials_that_start_side_by_side_take_their_time_once() -> None:
    """The document has the mean over the trials: half of a start when the first one has begun."""
    first = later(replace(a_sweep(2, workers=1), progress=trained(31, 0.5, startup=9)), 32)
    both = later(replace(first, progress=trained(40, 9, startup=18.5)), 41)
    lost = later(replace(both, progress=trained(80, 19, startup=18.5, recovery=30)), 81)
    goodput = lost.run.status.goodput
    assert goodput
    assert (goodput.lost_seconds.startup, goodput.lost_seconds.recovery) == (21, 30)


def test_trials_that_another_driver_continues_start_again() -> None:
    first = later(replace(a_sweep(1, workers=2), progress=trained(31, 1, startup=18)), 32)
    told = {"fencing_token": 2, "resumed_from_step": 10, "step": 20}
    restarted = a_progress(
        step_time=unix(131), seconds={"productive": 40, "startup": 20, "recovery": 0}, **told
    )
    resumed = later(replace(first, progress=restarted), 132)
    for seen in (resumed, later(resumed, 140)):
        goodput = seen.run.status.goodput
        assert goodput
        assert (goodput.lost_seconds.startup, goodput.lost_seconds.recovery) == (20 + 20, 40)


@pytest.mark.parametrize(
    ("training", "productive", "waiting"),
    [pytest.param(1, 65, 0, id="the other trains"), pytest.param(0, 50, 30, id="none trains")],
)
def test_a_trial_that_trains_does_not_wait_for_the_pods_of_another(
    training: int, productive: float, waiting: float
) -> None:
    """Of two with a worker each, one is without its pod from second 80 to 110."""
    both = a_sweep(2, workers=1)
    begun = later(replace(both, progress=trained(80, 50, startup=20)), 80)
    alone = a_progress(
        step_time=unix(80), seconds={"productive": 50, "startup": 20}, world_size=training
    )
    lost = later(replace(begun, pods=both.pods[:2], progress=alone), 80)
    back = replace(lost, pods=both.pods, progress=trained(110, productive, startup=20))
    seconds = cost(back, 110).seconds.to_dict()
    expected = {"training": 2 * productive, "starting": 40, "waiting": waiting}
    assert seconds == {"saving": 0, "lost": 0, **expected}


def test_an_attempt_s_accelerators_are_those_that_it_began_with() -> None:
    """Another operator's rule, or a spec that cannot be read in full, has others."""
    trains = later(replace(on_priced_nodes(), progress=trained(70, 40)), 71)
    edited = replace(trains, run=a_run(status=trains.run.status, workers={"count": 1}))
    assert cost(replace(edited, progress=trained(80, 50)), 81).seconds.training == 2 * 50


def test_a_run_that_fails_by_its_deadline_between_two_attempts_ends_then() -> None:
    backoff = {"initialSeconds": 3600, "factor": 1, "maxSeconds": 3600}
    spec = {"failures": {"backoff": backoff}, "activeDeadlineSeconds": 500}
    failed = later(ended_while_no_operator_ran("FAILED", **spec), 210)
    assert later(failed, 501).run.status.completion_time == at(501)


def test_steps_after_kuberay_has_given_up_are_before_the_end() -> None:
    given_up = ended_while_no_operator_ran("FAILED", failures={"maxRestarts": 0})
    told = trained(260, 60).model_copy(
        update={"state": RunState.FAILED, "failure": Failure(kind="Application", message="no")}
    )
    assert later(replace(given_up, progress=told), 300).run.status.completion_time == at(260)


def test_a_run_whose_end_was_seen_late_stays_its_ttl_from_then_on() -> None:
    spec = {"ttlSecondsAfterFinished": 3600}
    gone = replace(later(ended_while_no_operator_ran("SUCCEEDED", **spec), 36_000), ray_jobs=())
    assert priced(gone, 36_000 + 3599).actions == ()
    assert [type(action) for action in priced(gone, 36_000 + 3600).actions] == [Delete]


def test_pods_that_kueue_took_back_while_no_operator_ran_cost_nothing_from_then_on() -> None:
    trains = later(replace(on_priced_nodes(), progress=trained(70, 30)), 71)
    queued = replace(
        trains,
        ray_jobs=(a_ray_job(queued=True),),
        pods=(),
        nodes={},
        progress=None,
        queued_since=T0 + timedelta(seconds=100),
    )
    assert cost(queued, 7200).total_seconds == 2 * (100 - 10)


def test_pods_that_are_left_when_kueue_takes_the_capacity_back_cost_until_they_are_gone() -> None:
    trains = later(replace(on_priced_nodes(), progress=trained(70, 30)), 71)
    queued = replace(
        trains, ray_jobs=(a_ray_job(queued=True),), queued_since=T0 + timedelta(seconds=100)
    )
    leaving = later(queued, 101, pods=())
    assert cost(leaving, 140).total_seconds == 2 * (140 - 10)


BUDGET = {"amount": 2.0}
"""What the two workers and the head cost in about 98 s."""


def over_budget(**budget: Any) -> Observed:
    """A run that trains, and has just cost its budget."""
    begun = on_priced_nodes(budget={**BUDGET, **budget})
    trains = later(replace(begun, progress=trained(70, 30)), 71)
    spent = later(trains, 130)
    assert spent.run.status.cost
    assert spent.run.status.cost.amount == pytest.approx(2.46)
    return spent


def test_a_run_is_looked_at_again_when_its_budget_will_be_nearly_and_wholly_spent() -> None:
    trains = replace(on_priced_nodes(budget=BUDGET), progress=trained(70, 30))
    planned = priced(trains, 71)
    assert planned.requeue_after_s == pytest.approx(0.9 * 2 / 73.8 * 3600 - 61 + 1, abs=0.1)
    planned = priced(later(later(trains, 71), 99), 99)
    assert planned.requeue_after_s == pytest.approx(2 / 73.8 * 3600 - 89 + 1, abs=0.1)
    assert not [event for event in planned.events if event.reason == "BudgetSpent"]


def test_a_spent_budget_suspends_the_run_as_its_spec_would() -> None:
    begun = on_priced_nodes(budget=BUDGET)
    trains = later(replace(begun, progress=trained(70, 30)), 71)
    reached = priced(trains, 130)
    assert [event.reason for event in reached.events] == ["BudgetSpent"]
    assert reached.requeue_after_s == 0
    spent = later(trains, 130)
    asked = priced(spent, 130)
    assert RequestSuspend(1) in asked.actions
    assert [event.reason for event in asked.events] == ["Suspending"], "it is said once"
    assert "spec.budget.amount is 2.00 USD" in condition(asked, "Suspended").message
    saved = replace(later(spent, 130), progress=a_progress(state="Suspended"))
    ended = later(saved, 135)
    assert ended.run.status.attempts[-1].outcome == "Suspended"
    gone = replace(ended, pods=(), ray_jobs=(), ray_clusters=(), nodes={}, confirmed=True)
    waits = priced(later(gone, 140), 141)
    suspended = condition(waits, "Suspended")
    assert (waits.status.phase, suspended.status, suspended.reason) == (
        "Suspended", "True", "BudgetSpent",
    )  # fmt: skip
    assert suspended.message == (
        "Every pod is gone; the run has cost its budget, and spec.budget.amount is 2.00 USD: "
        "a larger amount continues"
    )
    assert begins(waits) is None


@pytest.mark.parametrize(
    ("budget", "begun"),
    [({"amount": 2.5}, None), ({"amount": 100.0}, 2), ({"amount": 2.0, "action": "Warn"}, 2)],
)
def test_a_run_continues_once_its_budget_is_larger_than_what_it_has_cost(
    budget: dict[str, Any], begun: int | None
) -> None:
    spent = over_budget()
    saved = replace(later(spent, 130), progress=a_progress(state="Suspended"))
    gone = replace(
        later(saved, 135), pods=(), ray_jobs=(), ray_clusters=(), nodes={}, confirmed=True
    )
    suspended = later(gone, 140)
    edited = replace(suspended, run=a_run(status=suspended.run.status, budget=budget))
    assert begins(priced(later(edited, 200), 201)) == begun


def test_a_spent_budget_that_is_as_large_as_a_limit_is_not_to_be_raised() -> None:
    """The limits of when the run began hold: neither is one taken that is raised since."""
    begun = on_priced_nodes(budget=BUDGET)
    sources = [
        {"kind": "TrainingDefaults", "name": "default", "maximum": {"budgetAmount": 3}},
        {"kind": "ClusterTrainingDefaults", "name": "default", "maximum": {"budgetAmount": 2}},
    ]
    for taken, said in (
        (1, "a larger amount continues"),
        (2, "ClusterTrainingDefaults default allows this run at most 2, and no larger amount is "
            "taken; delete the run, or begin another one"),
    ):  # fmt: skip
        kept = {"sources": [{**one, "resourceVersion": "1"} for one in sources[:taken]], "spec": {}}
        status = begun.run.status.model_copy(
            update={"defaults": AppliedDefaults.model_validate(kept)}
        )
        held = replace(begun, run=begun.run.model_copy(update={"status": status}))
        spent = later(later(replace(held, progress=trained(70, 30)), 71), 130)
        message = condition(priced(spent, 130), "Suspended").message
        assert message.endswith(f"spec.budget.amount is 2.00 USD: {said}")


def deleted(planned: Plan) -> list[str]:
    """The RayJobs that are deleted."""
    return [one.ref.name for one in planned.actions if isinstance(one, Delete)]


RAISED = {"kind": "Application", "message": "ValueError: no"}


@pytest.mark.parametrize(
    ("restarts", "phase"),
    [(3, "Recovering"), (0, "Failed")],
    ids=["between attempts", "at the end"],
)
@pytest.mark.parametrize(("action", "freed"), [("Suspend", ["digits-1"]), ("Warn", [])])
def test_a_spent_budget_frees_the_pods_of_a_failed_attempt_that_are_kept(
    restarts: int, phase: str, action: str, freed: list[str]
) -> None:
    backoff = {"initialSeconds": 600, "maxSeconds": 600}
    failures = {"keepFailedPodsSeconds": 600, "maxRestarts": restarts, "backoff": backoff}
    begun = on_priced_nodes(budget={**BUDGET, "action": action}, failures=failures)
    trains = later(replace(begun, progress=trained(70, 30)), 71)
    raised = replace(trains, progress=a_progress(state="Failed", failure=RAISED))
    over = (a_ray_job(status="FAILED", deployment="Failed"),)
    kept = later(later(raised, 80, ray_jobs=over), 82)
    planned = priced(kept, 84)
    assert (planned.status.phase, deleted(planned)) == (phase, [])
    assert planned.requeue_after_s == pytest.approx(0.9 * 2 / 73.8 * 3600 - 74, abs=2.5)
    spent = later(kept, 130)
    assert spent.run.status.cost
    assert spent.run.status.cost.amount
    assert spent.run.status.cost.amount >= 2
    assert deleted(priced(spent, 131)) == freed


def test_a_spent_budget_that_only_warns_lets_the_run_continue() -> None:
    planned = priced(over_budget(action="Warn"), 131)
    waiting = condition(planned, "Waiting")
    assert (waiting.status, waiting.reason) == ("True", "BudgetSpent")
    assert waiting.message == (
        "The run has cost 2.46 USD, and spec.budget.amount is 2.00 USD; the training continues, "
        "since spec.budget.action is Warn"
    )
    assert not planned.actions
    assert condition(planned, "Suspended").status == "False"


@pytest.mark.parametrize(
    ("prices", "what"), [((), "all that the run has used"), (PRICES[:2], "node base-1")]
)
def test_a_budget_that_cannot_be_checked_is_said(prices: tuple[NodePrice, ...], what: str) -> None:
    begun = on_priced_nodes(prices, budget=BUDGET)
    waiting = condition(priced(begun, 20, prices), "Waiting")
    assert (waiting.status, waiting.reason) == ("True", "BudgetUnknown")
    assert waiting.message.startswith(f"The operator has no price for {what}, so that spec.budget")
    since = later(later(begun, 30, prices), 35)
    assert condition(priced(since, 40), "Waiting").reason != "BudgetUnknown", "there are prices"


TIMES = st.floats(0, 40, allow_nan=False)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            TIMES,
            st.fixed_dictionaries(
                {"productive": TIMES, "lost_work": TIMES, "checkpoint": TIMES},
            ),
            st.integers(0, 100),
            st.integers(0, 3),
        ),
        max_size=12,
    )
)
def test_every_second_and_every_accelerator_second_is_somewhere_once(
    history: list[tuple[int, float, dict[str, float], int, int]],
) -> None:
    """Whatever drivers report, with clocks that are off, and however many pods there are."""
    seen, now = on_priced_nodes(), 10.0
    every, token = pods(), 1
    for further, passed, seconds, step, left in history:
        token, now = max(token, further), now + passed
        document = a_progress(
            fencing_token=further, step=step, step_time=unix(now - 3), seconds=seconds
        )
        seen = later(replace(seen, progress=document, pods=every[:left]), now)
        goodput, spent = seen.run.status.goodput, seen.run.status.cost
        if goodput is not None:
            lost = goodput.lost_seconds.model_dump()
            assert min(goodput.productive_seconds, *lost.values()) >= 0
            total = goodput.productive_seconds + sum(lost.values())
            assert total == pytest.approx(goodput.seconds, abs=0.01)
            assert 0 <= goodput.percent <= 100
        if spent is not None:
            causes = spent.seconds.model_dump()
            assert min(causes.values()) >= 0
            assert sum(causes.values()) == pytest.approx(spent.total_seconds, abs=0.01)
