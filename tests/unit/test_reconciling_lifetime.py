"""Suspension, the deadline, the end and what comes after it."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_head, a_pod, a_progress, a_ray_job, a_run, pods, unix
from support.reconciled import (
    a_polled_run,
    a_training_run,
    begins,
    condition,
    reconcile,
    then,
    wanting,
)
from trainingrun.reconciling import Observed
from trainingrun.reconciling.model import Delete, RequestSuspend


@pytest.fixture
def training() -> Observed:
    return a_polled_run()


def emptied(observed: Observed) -> Observed:
    return replace(observed, ray_jobs=(), ray_clusters=(), pods=())


def test_suspend_asks_for_a_checkpoint_until_the_driver_says_that_it_is_suspended(
    training: Observed,
) -> None:
    asking = reconcile(wanting(training, suspend=True))
    assert asking.actions == (RequestSuspend(1),)
    assert condition(asking, "Suspended").status == "False"
    still = then(wanting(training, suspend=True), 60)
    assert reconcile(still, 64).actions == (RequestSuspend(1),)
    done = reconcile(replace(still, progress=a_progress(state="Suspended", step=12)), 66)
    assert done.status.attempts[-1].outcome == "Suspended"


def test_phase_suspended_is_said_only_once_every_pod_is_gone(training: Observed) -> None:
    asked = then(wanting(training, suspend=True), 60)
    ended = then(replace(asked, progress=a_progress(state="Suspended")), 62)
    deleting = reconcile(ended, 63)
    assert [type(action) for action in deleting.actions] == [Delete]
    assert deleting.status.phase != "Suspended"
    assert reconcile(replace(ended, ray_jobs=(), ray_clusters=()), 64).status.phase != "Suspended"
    rests = reconcile(emptied(ended), 65)
    assert (rests.status.phase, rests.actions, rests.requeue_after_s) == ("Suspended", (), None)
    assert condition(rests, "Suspended").status == "True"


def test_a_runtime_that_does_not_answer_is_ended_after_two_minutes(training: Observed) -> None:
    asked = then(wanting(training, suspend=True), 60)
    silent = replace(asked, progress_age_s=100.0, progress_failing_s=100.0, progress_polled_s=100.0)
    assert reconcile(silent, 179).status.attempts[-1].outcome == "Running"
    assert reconcile(silent, 180).status.attempts[-1].outcome == "Suspended"


def test_a_driver_that_still_answers_may_save_for_half_an_hour_and_its_failure_is_told(
    training: Observed,
) -> None:
    """A state of 10 GB per rank takes minutes to upload, and a step may take as long."""
    asked = then(wanting(training, suspend=True), 60)
    saves = replace(asked, progress=a_progress(time=unix(59)), progress_age_s=1.0)
    assert reconcile(saves, 1859).status.attempts[-1].outcome == "Running"
    ended = reconcile(saves, 1860)
    assert ended.status.attempts[-1].outcome == "Suspended"
    (event,) = [event for event in ended.events if event.type == "Warning"]
    assert "Suspended without a last checkpoint: none was made within 1800 s" in event.message
    away = a_progress(time=unix(59), storage_error="The bucket does not answer")
    late = reconcile(replace(saves, progress=away), 180)
    assert late.status.attempts[-1].outcome == "Suspended", "it can save nothing"


@pytest.mark.parametrize(
    "read",
    [
        pytest.param({"progress_failing_s": 1.0, "progress_polled_s": 200.0}, id="one poll fails"),
        pytest.param({"progress_age_s": 45.0, "progress_polled_s": 200.0}, id="polls are rare"),
        pytest.param(
            {"progress": None, "progress_age_s": None, "progress_polled_s": 1.0},
            id="another operator has just begun to ask",
        ),
    ],
)
@pytest.mark.parametrize("by", ["suspend", "KubeRay"])
def test_a_moment_of_silence_ends_no_driver_that_saves(
    training: Observed, by: str, read: dict[str, Any]
) -> None:
    saving = replace(
        training, progress=a_progress(time=unix(59)), progress_age_s=1.0, progress_polled_s=100.0
    )
    if by == "suspend":
        saving = wanting(saving, suspend=True)
    else:
        gave_up = a_ray_job(deployment="Failed", reason="JobStatusCheckTimeoutExceeded")
        saving = replace(saving, ray_jobs=(gave_up,))
    asked = then(saving, 60)
    assert reconcile(replace(asked, **read), 300).status.attempts[-1].outcome == "Running"
    silent = replace(asked, progress_age_s=31.0, progress_failing_s=31.0, progress_polled_s=300.0)
    assert reconcile(silent, 300).status.attempts[-1].outcome != "Running", "silence that lasts"
    unasked = replace(asked, progress_age_s=45.0, progress_polled_s=None)
    assert reconcile(unasked, 300).status.attempts[-1].outcome != "Running", "no head to poll"


def test_what_is_charged_with_the_end_of_a_suspended_attempt_counts(training: Observed) -> None:
    """The next attempt would begin though a rule says Fail, or no loss is left."""
    lost = a_pod("worker-1", terminating_at=61)
    last = replace(
        wanting(training, suspend=True, failures={"maxPreemptions": 0}),
        progress=a_progress(state="Suspended", step=12),
        pods=(a_head(), lost, a_pod("worker-2")),
    )
    status = reconcile(last, 62).status
    assert (status.phase, status.attempts[-1].outcome) == ("Failed", "Suspended")


def test_an_attempt_whose_entry_was_edited_away_goes_on(training: Observed) -> None:
    status = training.run.status
    for attempts in ([], [*status.attempts[:-1]]):
        edited = status.model_copy(update={"attempts": attempts})
        seen = replace(training, run=training.run.model_copy(update={"status": edited}))
        plan = reconcile(seen, 62)
        assert [attempt.outcome for attempt in plan.status.attempts] == ["Running"]
        assert not any(isinstance(action, Delete) for action in plan.actions)


def test_a_driver_that_has_not_spoken_has_nothing_to_save(training: Observed) -> None:
    silent = replace(training, progress=None, ray_jobs=(a_ray_job(),), pods=(a_head(),))
    assert reconcile(wanting(silent, suspend=True)).status.attempts[-1].outcome == "Suspended"


def test_an_operator_that_has_just_started_does_not_take_its_own_silence_for_the_driver_s(
    training: Observed,
) -> None:
    unreported = replace(training, progress=None, progress_age_s=None)
    assert reconcile(wanting(unreported, suspend=True)).actions == (RequestSuspend(1),)


def test_a_run_that_is_created_suspended_makes_no_pods() -> None:
    plan = reconcile(Observed(a_run(suspend=True)))
    assert (plan.actions, plan.status.phase) == ((), "Suspended")


def test_resuming_begins_the_next_attempt_and_leaves_the_sleep_out_of_the_deadline(
    training: Observed,
) -> None:
    asked = then(wanting(training, suspend=True, activeDeadlineSeconds=100), 60)
    ended = then(replace(asked, progress=a_progress(state="Suspended")), 62)
    asleep = then(emptied(ended), 70)
    assert reconcile(asleep, 5000).status.phase == "Suspended", "the deadline stands still"
    awake = wanting(asleep, activeDeadlineSeconds=100)
    resumed = reconcile(awake, 1070)
    assert begins(resumed) == 2
    assert resumed.status.suspended_seconds == 1000
    later = then(awake, 1070, ray_jobs=(a_ray_job(2),), pods=pods(2, created_at=1070))
    assert reconcile(later, 1090).status.phase != "Failed"
    assert condition(reconcile(later, 1101), "Failed").reason == "DeadlineExceeded"


def test_suspending_uses_no_budget_and_is_no_attempt_without_progress(training: Observed) -> None:
    asked = then(wanting(training, suspend=True, failures={"maxAttemptsWithoutProgress": 1}), 60)
    ended = reconcile(replace(asked, progress=a_progress(state="Suspended")), 62).status
    assert (
        ended.phase == "Failed",
        ended.restarts,
        ended.seen.get("attemptsWithoutProgress", 0),
    ) == (
        False,
        0,
        0,
    )


def test_a_wish_taken_back_before_the_pods_were_gone_goes_on_with_the_next_attempt(
    training: Observed,
) -> None:
    asked = then(wanting(training, suspend=True), 60)
    ended = then(wanting(replace(asked, progress=a_progress(state="Suspended"))), 62)
    planned = reconcile(emptied(ended), 63)
    assert (begins(planned), planned.status.suspended_seconds) == (2, 0)


def test_the_deadline_ends_the_run_wherever_it_is(training: Observed) -> None:
    limited = wanting(training, activeDeadlineSeconds=50)
    plan = reconcile(limited, 51)
    assert (plan.status.phase, condition(plan, "Failed").reason) == ("Failed", "DeadlineExceeded")
    assert plan.status.attempts[-1].outcome == "Failed"
    assert plan.status.disruptions.application_errors == 0
    assert reconcile(limited, 49).requeue_after_s == 1.0
    waiting = then(replace(limited, ray_jobs=()), 30)
    assert reconcile(emptied(waiting), 51).status.phase == "Failed"


@pytest.mark.parametrize("wish", [{"activeDeadlineSeconds": 50}, {"suspend": True}])
@pytest.mark.parametrize(
    ("job", "outcome", "errors"),
    [
        (a_ray_job(status="SUCCEEDED", deployment="Complete"), "Succeeded", 0),
        (a_ray_job(status="FAILED", deployment="Failed", message="exit code 1"), "Failed", 1),
    ],
    ids=["succeeded", "failed"],
)
def test_neither_the_deadline_nor_a_wish_to_suspend_replaces_an_end_whose_document_is_awaited(
    training: Observed, wish: dict[str, Any], job: dict[str, Any], outcome: str, errors: int
) -> None:
    over = replace(training, ray_jobs=(job,), progress=None, progress_age_s=None)
    over = wanting(replace(over, progress_failing_s=3.0, progress_polled_s=4.0), **wish)
    awaited = reconcile(over, 49)
    assert (awaited.status.attempts[-1].outcome, awaited.actions) == ("Running", ())
    assert reconcile(then(over, 49), 60).status.attempts[-1].outcome == "Running"
    ended = reconcile(then(over, 49), 80).status
    assert ended.attempts[-1].outcome == outcome
    assert ended.disruptions.application_errors == errors


def test_the_deadline_ends_a_run_whose_ray_job_kuberay_gave_up_while_it_trains(
    training: Observed,
) -> None:
    gave_up = a_ray_job(deployment="Failed", reason="JobStatusCheckTimeoutExceeded")
    limited = wanting(replace(training, ray_jobs=(gave_up,)), activeDeadlineSeconds=50)
    assert reconcile(then(limited, 40), 51).status.phase == "Failed"


def test_edited_checkpoints_are_said_to_apply_from_the_next_attempt_on(training: Observed) -> None:
    edited = then(wanting(training, checkpoints={"everySeconds": 60}), 60)
    accepted = condition(reconcile(edited, 62), "Accepted")
    assert (accepted.status, accepted.reason) == ("True", "FromNextAttempt")
    assert "from the next attempt on" in accepted.message
    back = condition(reconcile(wanting(edited), 64), "Accepted")
    assert (back.reason, back.message) == ("Valid", "The spec can be used")
    lost = then(replace(edited, ray_jobs=()), 66)
    second = then(emptied(lost), 68, ray_jobs=(a_ray_job(2),), pods=pods(2, created_at=68))
    plan = reconcile(second, 70)
    assert plan.status.attempt == 2
    assert condition(plan, "Accepted").reason == "Valid"


def test_nothing_is_said_of_an_attempt_of_an_operator_that_did_not_note_its_checkpoints(
    training: Observed,
) -> None:
    status = training.run.status
    seen = {name: value for name, value in status.seen.items() if name != "checkpoints"}
    run = training.run.model_copy(update={"status": status.model_copy(update={"seen": seen})})
    edited = wanting(replace(training, run=run), checkpoints={"everySeconds": 60})
    assert condition(reconcile(edited, 62), "Accepted").reason == "Valid"


def test_a_default_that_a_former_operator_did_not_know_is_no_edit(training: Observed) -> None:
    status = training.run.status
    seen = {**status.seen, "checkpoints": {"everySeconds": 60}}
    run = training.run.model_copy(update={"status": status.model_copy(update={"seen": seen})})
    same = wanting(replace(training, run=run), checkpoints={"everySeconds": 60})
    assert condition(reconcile(same, 62), "Accepted").reason == "Valid"


def test_the_wait_for_kueue_is_left_out_of_the_deadline() -> None:
    queued = then(Observed(a_run(activeDeadlineSeconds=100)), 0, ray_jobs=(a_ray_job(queued=True),))
    waiting = then(queued, 2)
    assert reconcile(waiting, 5000).status.phase == "Queued"
    admitted = then(replace(waiting, ray_jobs=(a_ray_job(),), pods=pods()), 5002)
    assert admitted.run.status.queued_seconds == 5000
    assert reconcile(admitted, 5090).status.phase != "Failed"
    assert condition(reconcile(admitted, 5101), "Failed").reason == "DeadlineExceeded"


def test_the_deadline_stands_still_again_while_kueue_has_taken_the_capacity_back(
    training: Observed,
) -> None:
    limited = then(wanting(training, activeDeadlineSeconds=100), 60)
    back = then(replace(limited, ray_jobs=(a_ray_job(queued=True),)), 70, pods=())
    unseen = replace(back, ray_jobs=(), stale={"RayJob": "forbidden"})
    assert reconcile(then(unseen, 3000), 4000).status.phase != "Failed"
    again = then(replace(back, ray_jobs=(a_ray_job(),), pods=pods(created_at=5070)), 5070)
    assert again.run.status.queued_seconds == 5000
    stepped = a_progress(fencing_token=2, step=12, step_time=unix(5090))
    goodput = reconcile(replace(again, progress=stepped), 5091).status.goodput
    assert goodput
    assert 5000 <= goodput.lost_seconds.queue < 5010
    assert goodput.lost_seconds.recovery < 60
    assert reconcile(again, 5095).status.phase != "Failed"
    assert condition(reconcile(again, 5101), "Failed").reason == "DeadlineExceeded"


def test_an_attempt_that_ends_in_the_queue_ends_its_wait() -> None:
    queued = then(Observed(a_run(activeDeadlineSeconds=100)), 0, ray_jobs=(a_ray_job(queued=True),))
    waiting = then(queued, 10)
    gone = then(emptied(waiting), 60)
    assert gone.run.status.queued_seconds == 50
    assert "queuedSince" not in gone.run.status.seen


def test_the_end_is_cleared_away_until_nothing_is_left_and_stays_as_it_was_written(
    training: Observed,
) -> None:
    done = then(replace(training, progress=a_progress(state="Succeeded")), 60)
    first = reconcile(done, 61)
    assert [type(action) for action in first.actions] == [Delete]
    assert first.requeue_after_s is not None, "a failed delete must be tried again"
    undone = wanting(
        emptied(done), suspend=True, activeDeadlineSeconds=1, failures={"maxRestarts": 0}
    )
    after = reconcile(undone, 9000)
    assert after.actions == ()
    counted = {"cost": after.status.cost, "seen": after.status.seen}
    assert after.status == undone.run.status.model_copy(update=counted)
    failing = a_progress(state="Failed", failure={"kind": "Application", "message": "no"})
    assert reconcile(replace(done, progress=failing), 62).status == done.run.status


def test_the_run_is_deleted_its_ttl_after_the_end_and_not_before_its_pods(
    training: Observed,
) -> None:
    mortal = wanting(training, ttlSecondsAfterFinished=100)
    done = then(replace(mortal, progress=a_progress(state="Succeeded")), 60)
    assert reconcile(emptied(done), 159).actions == ()
    assert reconcile(emptied(done), 159).requeue_after_s == 1.0
    (delete,) = reconcile(emptied(done), 160).actions
    assert isinstance(delete, Delete)
    assert (delete.ref.kind, delete.ref.uid) == ("TrainingRun", done.run.metadata.uid)
    left = reconcile(replace(done, ray_jobs=()), 200)
    assert [action.ref.kind for action in left.actions if isinstance(action, Delete)] == [
        "RayCluster"
    ], "what the run has left behind goes first"


def test_a_wish_that_is_taken_back_is_forgotten_with_its_deadline(training: Observed) -> None:
    asked = then(wanting(training, suspend=True), 60)
    back = then(wanting(asked), 70)
    assert "suspendAsked" not in back.run.status.seen
    assert reconcile(back, 500).status.attempts[-1].outcome == "Running"
    again = wanting(back, suspend=True)
    assert reconcile(then(again, 500), 600).actions == (RequestSuspend(1),), (
        "120 s from the new request"
    )


def test_a_driver_that_ends_after_the_wish_was_taken_back_is_followed_by_the_next(
    training: Observed,
) -> None:
    asked = then(wanting(training, suspend=True), 60)
    back = then(wanting(asked), 70)
    ended = then(replace(back, progress=a_progress(state="Suspended", step=12)), 72)
    assert ended.run.status.attempts[-1].outcome == "Suspended"
    planned = reconcile(emptied(ended), 75)
    assert (begins(planned), planned.status.restarts) == (2, 0)


WRONG = "spec.workers.count: must be at least 1"


def test_a_run_whose_spec_became_invalid_is_accompanied_to_its_end(training: Observed) -> None:
    """By what was rendered; the placeholder for its spec has another number of workers."""
    three = (*pods(), a_pod("worker-3", node="spot-3"))
    begun = a_training_run(workers={"count": 3})
    trains = then(replace(begun, pods=three, progress=a_progress(world_size=3)), 62)
    invalid = replace(wanting(trains, workers={"count": 1}), invalid=WRONG)
    plan = reconcile(invalid, 64)
    accepted = condition(plan, "Accepted")
    assert (accepted.status, accepted.reason, accepted.message) == ("False", "InvalidSpec", WRONG)
    assert (plan.actions, plan.status.phase) == ((), "Running")
    lost = replace(invalid, pods=(*three[:3], a_pod("worker-3", terminating_at=64)))
    assert reconcile(lost, 66).status.disruptions.preemptions == 1
    done = then(replace(invalid, progress=a_progress(state="Succeeded", world_size=3)), 70)
    assert done.run.status.phase == "Succeeded"
    assert [type(action) for action in reconcile(done, 72).actions] == [Delete]


def test_a_run_whose_spec_became_invalid_keeps_its_number_of_pods() -> None:
    """What is left of its spec may lack `perPod`; a second worker pod is none of the run's."""
    one = pods()[:2]
    begun = replace(a_training_run(workers={"count": 2, "perPod": 2}), pods=one)
    trains = then(replace(begun, progress=a_progress()), 62)
    invalid = replace(wanting(trains, workers={"count": 2}), invalid=WRONG)
    forged = a_pod("worker-2", node="spot-2", created_at=63, exit_code=1)
    planned = reconcile(replace(invalid, pods=(*one, forged)), 66)
    assert planned.status.disruptions.history == []
    assert planned.actions == reconcile(invalid, 66).actions
    assert planned.status.seen["meter"]["held"] == {"devices": 2}


def test_an_invalid_run_is_suspended_and_cleaned_up_but_begins_nothing(
    training: Observed,
) -> None:
    asked = then(replace(wanting(training, suspend=True), invalid=WRONG), 64)
    assert reconcile(asked, 66).actions == (RequestSuspend(1),)
    ended = then(replace(asked, progress=a_progress(state="Suspended")), 68)
    assert [type(action) for action in reconcile(ended, 70).actions] == [Delete]
    assert reconcile(emptied(ended), 75).status.phase == "Suspended"
    awake = replace(wanting(then(emptied(ended), 75)), invalid=WRONG)
    assert (reconcile(awake, 80).actions, reconcile(awake, 80).status.attempt) == ((), 1)
    assert begins(reconcile(replace(awake, invalid=None), 90)) == 2
