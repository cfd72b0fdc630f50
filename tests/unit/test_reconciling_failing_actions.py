"""What does not work is in the status: which action fails, since when and why."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.builders import T0, a_run, at
from support.reconciled import a_polled_run, begins, condition, reconcile, then
from trainingrun.reconciling import Observed
from trainingrun.reconciling.diagnosis.failing_actions import after_error, without_status
from trainingrun.reconciling.model import Delete, FailingAction

DENIED = 'admission webhook "policy.example.org" denied the request: no'
ENDLESS = "no " * 500_000


def failing(
    kind: str, name: str, message: str = DENIED, verb: Any = "create", refused: bool = True
) -> FailingAction:
    """An action that fails since 50 seconds into the story."""
    return FailingAction(verb, kind, name, message, refused, T0 + timedelta(seconds=50))


@pytest.fixture
def fresh() -> Observed:
    return Observed(a_run())


@pytest.fixture
def left() -> Observed:
    """An ended attempt, of which the RayJob is left."""
    training = a_polled_run()
    ended = then(replace(training, ray_jobs=()), 60)
    return replace(ended, ray_jobs=training.ray_jobs)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("RayJob", "digits-1"),
        ("Secret", "digits-1a2b3c4d-token"),
        ("NetworkPolicy", "digits-1a2b3c4d-ray"),
    ],
)
def test_a_refused_object_is_said_and_nothing_claims_that_the_attempt_began(
    fresh: Observed, kind: str, name: str
) -> None:
    plan = reconcile(replace(fresh, failing=(failing(kind, name),)))
    found = condition(plan, "Accepted")
    assert (found.status, found.reason) == ("False", "Rejected")
    for part in (f"{kind} {name}", DENIED, at(50)):
        assert part in found.message
    assert (begins(plan), plan.status.attempt) == (1, 0), "it is tried again, and not claimed"
    assert plan.requeue_after_s is not None


def test_a_status_never_claims_the_attempt_that_its_own_plan_begins(fresh: Observed) -> None:
    plan = reconcile(fresh)
    assert (begins(plan), plan.status.attempt, plan.status.attempts) == (1, 0, [])
    assert plan.events == ()


def test_two_refused_deletions_keep_no_loss_from_being_recorded(left: Observed) -> None:
    deleting = reconcile(left, 62)
    refused = tuple(
        failing(action.ref.kind, action.ref.name, verb="delete")
        for action in deleting.actions
        if isinstance(action, Delete)
    )
    plan = reconcile(replace(left, failing=refused), 62)
    found = condition(plan, "Stalled")
    assert (found.status, found.reason) == ("True", "Rejected")
    assert f"refuses to delete the {refused[0].kind} {refused[0].name}" in found.message
    assert plan.actions == deleting.actions, "they are still to be done"
    assert plan.status.attempts == deleting.status.attempts


def test_an_accepted_run_waits_for_a_quota(fresh: Observed) -> None:
    quota = failing("RayJob", "digits-1", "rayjobs is forbidden: exceeded quota: objects")
    plan = reconcile(replace(fresh, failing=(quota,)))
    assert condition(plan, "Accepted").status == "True"
    found = condition(plan, "Waiting")
    assert (found.status, found.reason) == ("True", "QuotaExceeded")


def test_a_refusal_is_said_beside_a_lost_access_to_the_api_server(fresh: Observed) -> None:
    refused = failing("RayJob", "digits-1")
    plan = reconcile(replace(fresh, failing=(refused,), stale={"Node": "403: forbidden"}))
    found = [condition(plan, "Accepted"), condition(plan, "Waiting")]
    assert [(known.status, known.reason) for known in found] == [
        ("False", "Rejected"),
        ("True", "ApiAccessLost"),
    ]


@pytest.mark.parametrize(("seconds", "said"), [(59, "False"), (60, "True")])
def test_an_action_without_an_answer_is_said_once_it_lasts(
    left: Observed, seconds: int, said: str
) -> None:
    silent = failing("RayJob", "digits-1", "DELETE /x: TimeoutError", "delete", refused=False)
    found = condition(reconcile(replace(left, failing=(silent,)), seconds), "Waiting")
    assert found.status == said
    if said == "True":
        assert found.reason == "ActionFails"
        assert f"Deleting the RayJob digits-1 has not worked since {at(50)}" in found.message


def test_what_is_no_longer_planned_is_said_no_more(left: Observed) -> None:
    stalled = then(replace(left, failing=(failing("RayJob", "digits-1", verb="delete"),)), 62)
    assert stalled.run.status.seen["failingSince"] == at(50)
    gone = reconcile(replace(stalled, failing=(), ray_jobs=(), ray_clusters=(), pods=()), 64)
    assert condition(gone, "Stalled").status == "False"
    assert "failingSince" not in gone.status.seen


def test_a_restarted_operator_says_what_the_former_one_said_until_it_has_tried(
    left: Observed,
) -> None:
    refused = failing("RayJob", "digits-1", verb="delete")
    stalled = then(replace(left, failing=(refused,)), 62)
    restarted = replace(stalled, failing=(), acted=False)
    assert reconcile(restarted, 70).status == stalled.run.status
    later = replace(refused, since=T0 + timedelta(seconds=70))
    again = reconcile(replace(restarted, failing=(later,), acted=True), 71)
    assert again.status == stalled.run.status, "since when it fails is as it was"


def test_an_edit_does_not_unsay_a_refusal_that_goes_on(left: Observed) -> None:
    """All is tried anew after it, and the first failure may not say yet that it is refused."""
    stalled = then(replace(left, failing=(failing("RayJob", "digits-1", verb="delete"),)), 62)
    edited = then(replace(stalled, failing=(), acted=False), 70)
    anew = replace(
        failing("RayJob", "digits-1", "DELETE /x: 500", "delete", refused=False),
        since=T0 + timedelta(seconds=71),
    )
    again = reconcile(replace(edited, failing=(anew,), acted=True), 72)
    assert again.status == stalled.run.status
    assert again.requeue_after_s is not None
    assert again.requeue_after_s <= 10, "then it is said as it is"
    worked = reconcile(replace(edited, failing=(), acted=True), 72)
    assert condition(worked, "Stalled").status == "False"


def test_an_error_of_the_operator_itself_is_in_the_status_of_the_run(left: Observed) -> None:
    now = T0 + timedelta(seconds=62)
    error = f"KeyError: {ENDLESS}"
    plan = after_error(left.run, now, error)
    found = condition(plan, "Stalled")
    assert (found.status, found.reason, plan.actions) == ("True", "InternalError", ())
    assert "KeyError" in found.message
    assert len(found.message) <= 1000
    kept = plan.status.model_copy(update={"conditions": left.run.status.conditions})
    assert kept == left.run.status


def test_a_status_that_is_refused_is_said_in_the_former_one(left: Observed) -> None:
    now = T0 + timedelta(seconds=62)
    plan = without_status(left.run, now, "spec.x: no")
    found = condition(plan, "Stalled")
    assert (found.status, found.reason, plan.actions) == ("True", "StatusRefused", ())
    assert "spec.x: no" in found.message


def test_the_text_of_a_refusal_is_cut(fresh: Observed) -> None:
    plan = reconcile(replace(fresh, failing=(failing("RayJob", "digits-1", ENDLESS),)))
    assert len(condition(plan, "Accepted").message) <= 1000
