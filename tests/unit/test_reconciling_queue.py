"""A run of a Kueue queue: what its status says while it waits, and what counts as a preemption."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_head, a_ray_job, a_run, pods
from support.reconciled import a_polled_run, begins, condition, in_the_way, reconcile, then, wanting
from trainingrun.api.status import Disruptions
from trainingrun.cluster.kueue import why_not_admitted
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
