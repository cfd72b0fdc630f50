"""A run of a Kueue queue: what its status says while it waits, and what counts as a preemption."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from support.builders import T0, a_head, a_ray_job, a_run, at, pods
from support.reconciled import a_polled_run, begins, condition, in_the_way, reconcile, then, wanting
from trainingrun.api.status import Disruptions
from trainingrun.cluster.kueue import not_admitted_since, why_not_admitted
from trainingrun.reconciling import Observed

NO_QUOTA = "couldn't assign flavors to pod set head: insufficient quota for cpu in flavor default"


def a_queued_job(number: int = 1) -> dict[str, Any]:
    job = a_ray_job(number, deployment="Suspended", queued=True)
    job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team-a"
    return job


@pytest.fixture
def queued() -> Observed:
    """A run whose first attempt was never admitted."""
    return then(Observed(a_run()), 0, ray_jobs=(a_queued_job(),))


def test_a_queued_run_says_what_kueue_says(queued: Observed) -> None:
    plan = reconcile(replace(queued, queue_wait=NO_QUOTA))
    assert (plan.status.phase, in_the_way(plan).reason) == ("Queued", "Queued")
    assert condition(plan, "Waiting").message == (
        f"Kueue has not admitted RayJob digits-1 to queue team-a: {NO_QUOTA}"
    )
    assert condition(plan, "Stalled").status == "False", "a wait is no failure"


def test_where_kueue_cannot_be_asked_the_message_says_where_to_look(queued: Observed) -> None:
    assert "kubectl get workloads -n" in condition(reconcile(queued), "Waiting").message


def test_a_kueue_that_makes_no_workload_is_named_after_a_minute(queued: Observed) -> None:
    without = replace(queued, queue_wait="")
    assert "nor made a Workload" not in condition(reconcile(without, 59), "Waiting").message
    assert "check that Kueue runs" in condition(reconcile(without, 60), "Waiting").message


def test_a_ray_job_of_no_queue_that_is_suspended_is_said_with_both_ways_out() -> None:
    suspended = then(Observed(a_run()), 0, ray_jobs=(a_ray_job(queued=True),))
    said = condition(reconcile(suspended), "Waiting").message
    assert "RayJob digits-1 is suspended and names no queue" in said
    assert "scheduling.queue" in said
    assert "kubectl patch rayjob digits-1 -n team-a" in said


def test_a_queue_that_gives_the_run_to_another_cluster_is_said_at_once() -> None:
    """Kueue's webhook has set the field; the RayJob would wait here without end."""
    job = a_ray_job()
    job["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    plan = reconcile(then(Observed(a_run()), 0, ray_jobs=(job,)))
    stalled = condition(plan, "Stalled")
    assert (stalled.status, stalled.reason) == ("True", "ManagedElsewhere")
    assert stalled.message.startswith("RayJob digits-1 is managed by kueue.x-k8s.io/multikueue, so")
    job["spec"]["managedBy"] = "ray.io/kuberay-operator"
    plan = reconcile(then(Observed(a_run()), 0, ray_jobs=(job,)))
    assert condition(plan, "Stalled").status == "False"


def test_the_wait_is_over_once_kueue_has_admitted_the_run(queued: Observed) -> None:
    waiting = then(replace(queued, queue_wait=NO_QUOTA))
    admitted = replace(waiting, queue_wait=None, ray_jobs=(a_ray_job(),), pods=pods(2))
    plan = reconcile(admitted, 62)
    assert (plan.status.phase, condition(plan, "Waiting").status) == ("Starting", "False")


def test_a_run_that_was_never_admitted_has_lost_nothing(queued: Observed) -> None:
    waiting = then(then(replace(queued, queue_wait=NO_QUOTA)), 600)
    assert (waiting.run.status.disruptions, waiting.run.status.attempt) == (Disruptions(), 1)
    admitted = then(replace(waiting, ray_jobs=(a_ray_job(),), pods=(a_head(created_at=600),)), 601)
    assert reconcile(admitted, 602).status.disruptions == Disruptions()


def test_capacity_that_kueue_took_back_is_waited_for_in_its_words() -> None:
    preempted = replace(a_polled_run(), ray_jobs=(a_queued_job(),), queue_wait="Preempted by c")
    plan = reconcile(preempted)
    assert plan.status.disruptions.preemptions == 1
    assert condition(plan, "Waiting").message.endswith(": Preempted by c")


def taken_back_at_100(since: datetime | None, **spec: Any) -> Observed:
    """What an operator that was away from second 60 on finds after hours: no pod is left."""
    trained = then(a_polled_run(activeDeadlineSeconds=3600, **spec), 60)
    return replace(
        trained,
        ray_jobs=(a_queued_job(),),
        ray_clusters=(),
        pods=(),
        progress=None,
        progress_age_s=None,
        queue_wait=NO_QUOTA,
        queued_since=since,
    )


@pytest.mark.parametrize(
    ("since", "queued_s"),
    [
        pytest.param(T0 + timedelta(seconds=100), 7200, id="since Kueue took it"),
        pytest.param(None, 7240, id="Kueue cannot be asked, since the last step that is known"),
    ],
)
def test_capacity_that_kueue_took_back_while_no_operator_ran_is_lost_once_and_waited_for(
    since: datetime | None, queued_s: float
) -> None:
    back = then(then(taken_back_at_100(since), 7200), 7210)
    assert back.run.status.disruptions.preemptions == 1
    admitted = replace(back, ray_jobs=(a_ray_job(),), queue_wait=None, queued_since=None)
    again = then(admitted, 7300)
    assert (again.run.status.phase, again.run.status.queued_seconds) == ("Recovering", queued_s)
    assert sum(again.run.status.disruptions.model_dump(exclude={"history"}).values()) == 1
    active_s = 7300 - queued_s
    assert reconcile(again, 7300 + 3599 - active_s).status.phase == "Recovering"
    failed = condition(reconcile(again, 7300 + 3600 - active_s), "Failed")
    assert failed.reason == "DeadlineExceeded"


def test_a_head_that_was_lost_before_is_not_lost_once_more_by_the_queue() -> None:
    lost = then(replace(a_polled_run(), pods=pods()[1:], confirmed=True), 60)
    assert lost.run.status.disruptions.head_losses == 1
    queued = reconcile(replace(lost, ray_jobs=(a_queued_job(),), ray_clusters=(), pods=()), 70)
    assert queued.status.disruptions == lost.run.status.disruptions


def test_a_wait_begins_as_its_workload_says_and_never_later_than_it_was_seen() -> None:
    taken = replace(a_polled_run(), ray_jobs=(a_queued_job(),))
    seen = then(taken, 70)
    assert seen.run.status.seen["queuedSince"] == at(70), "its pods are there"
    for since_s, begins_s in ((65, 65), (90, 70), (-9, 0)):
        told = then(replace(seen, pods=(), queued_since=T0 + timedelta(seconds=since_s)), 95)
        assert told.run.status.seen["queuedSince"] == at(begins_s)


def test_a_queued_run_that_is_suspended_leaves_the_queue_and_resumes_through_it(
    queued: Observed,
) -> None:
    ended = then(wanting(queued, suspend=True), 60)
    assert ended.run.status.attempts[-1].outcome == "Suspended"
    asleep = then(replace(ended, ray_jobs=()), 62)
    assert asleep.run.status.phase == "Suspended"
    resumed = reconcile(
        wanting(asleep, scheduling={"queue": {"kind": "Kueue", "name": "team-a"}}), 70
    )
    assert begins(resumed) == 2
    assert resumed.actions[-1].manifest["spec"]["suspend"] is True


def test_kueues_sentence_is_that_of_its_workload() -> None:
    waits = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": NO_QUOTA}
    reserved = {"type": "QuotaReserved", "status": "True", "message": "Quota reserved in gpus"}
    checks = [
        {"name": "capacity", "state": "Pending", "message": "no nodes yet"},
        {"name": "budget", "state": "Ready", "message": ""},
    ]
    assert why_not_admitted({"status": {"conditions": [waits]}}) == NO_QUOTA
    assert why_not_admitted({"status": {"conditions": [reserved], "admissionChecks": checks}}) == (
        "its quota is reserved, and admission checks are open: capacity: no nodes yet"
    )
    assert why_not_admitted({"status": {"conditions": [reserved]}}) is None
    assert why_not_admitted({}) is None


def test_a_workload_waits_since_the_first_of_its_conditions_that_says_so() -> None:
    def since(**conditions: tuple[str, float]) -> datetime | None:
        named = [
            {"type": name, "status": status, "lastTransitionTime": at(seconds)}
            for name, (status, seconds) in conditions.items()
        ]
        return not_admitted_since({"status": {"conditions": named}})

    admitted = {"QuotaReserved": ("True", 10), "Admitted": ("True", 12)}
    assert since(**admitted) is None
    assert since(**admitted, Evicted=("False", 10)) is None, "it was admitted again since"
    assert since(**admitted, Evicted=("True", 100)) == T0 + timedelta(seconds=100)
    taken = {"QuotaReserved": ("False", 140), "Admitted": ("False", 140)}
    assert since(**taken, Evicted=("True", 100)) == T0 + timedelta(seconds=100)
    checked = {"QuotaReserved": ("True", 300), "Admitted": ("False", 140)}
    assert since(**checked, Evicted=("False", 300)) == T0 + timedelta(seconds=140)
    assert since(QuotaReserved=("False", 1)) == T0 + timedelta(seconds=1)
    assert not_admitted_since({}) is None
