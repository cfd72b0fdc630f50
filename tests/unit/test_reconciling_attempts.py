"""How attempts end, who pays, how long the next one waits, and what belongs to whom."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.builders import (
    OTHER_UID,
    a_head,
    a_pod,
    a_progress,
    a_ray_cluster,
    a_ray_job,
    a_run,
    at,
    pods,
    unix,
)
from support.reconciled import (
    a_training_run,
    begins,
    condition,
    in_the_way,
    reconcile,
    then,
    wanting,
)
from trainingrun.api.failures_spec import Backoff
from trainingrun.api.status import Attempt, LossReason, RunStatus
from trainingrun.reconciling import Observed
from trainingrun.reconciling.attempts.retry_policy import backoff
from trainingrun.reconciling.model import Apply, Delete

SAVED = {"uri": "s3://c/10", "step": 10, "time": unix(50)}


def failed(kind: str = "Application", **document: Any) -> Any:
    failure = {"kind": kind, "message": "ValueError: loss is NaN"}
    return a_progress(state="Failed", failure=failure, **document)


def test_the_last_lines_of_the_rank_that_failed_first_are_in_the_status(
    training: Observed,
) -> None:
    lines = [f"line {number}" for number in range(7)]
    failure = {"kind": "Application", "message": "NaN", "rank": 3, "lastLines": [*lines, "x" * 900]}
    progress = a_progress(state="Failed", failure=failure)
    ended = reconcile(replace(training, progress=progress)).status.attempts[-1]
    assert ended.failed_rank == 3
    assert ended.last_lines == [*lines[3:], "x" * 200]


@pytest.mark.parametrize(
    ("changes", "outcome", "reason"),
    [
        pytest.param(
            {"progress": failed()},
            "Failed",
            LossReason.APPLICATION_ERROR,
            id="error of the training",
        ),
        pytest.param(
            {"progress": failed("Storage")},
            "Lost",
            LossReason.STORAGE_ERROR,
            id="error of the store",
        ),
        pytest.param(
            {"progress": failed("Storage", fencing_token=0)},
            "Lost",
            LossReason.STORAGE_ERROR,
            id="error of the store before training",
        ),
        pytest.param(
            {"progress": failed("Infrastructure")},
            "Lost",
            LossReason.INFRASTRUCTURE_ERROR,
            id="infrastructure",
        ),
        pytest.param(
            {"progress": a_progress(state="Suspended")},
            "Suspended",
            LossReason.SUSPENDED,
            id="suspended",
        ),
        pytest.param(
            {"progress": a_progress(state="Succeeded")}, "Succeeded", None, id="succeeded"
        ),
        pytest.param(
            {"progress": a_progress(state="Succeeded", fencing_token=0)},
            "Succeeded",
            None,
            id="succeeded before training",
        ),
        pytest.param(
            {"progress": a_progress(2, state="Succeeded")},
            "Running",
            None,
            id="document of another attempt",
        ),
        pytest.param({"ray_jobs": ()}, "Lost", LossReason.INFRASTRUCTURE_ERROR, id="RayJob gone"),
        pytest.param(
            {"ray_jobs": (a_ray_job(terminating=True),)},
            "Lost",
            LossReason.INFRASTRUCTURE_ERROR,
            id="RayJob terminating",
        ),
        pytest.param(
            {"ray_jobs": (), "kuberay": "missing"}, "Running", None, id="RayJob gone with its CRD"
        ),
    ],
)
def test_an_attempt_ends_by_the_driver_s_progress_or_with_its_ray_job(
    training: Observed, changes: dict[str, Any], outcome: str, reason: LossReason | None
) -> None:
    last = reconcile(replace(training, **changes)).status.attempts[-1]
    assert (last.outcome, last.reason) == (outcome, reason)


@pytest.mark.parametrize(
    ("job", "changes", "outcome", "reason"),
    [
        pytest.param({"status": "SUCCEEDED"}, {}, "Succeeded", None, id="succeeded"),
        pytest.param({"status": "FAILED"}, {}, "Failed", LossReason.APPLICATION_ERROR, id="failed"),
        pytest.param(
            {"deployment": "Failed", "reason": "SubmissionFailed"},
            {},
            "Lost",
            LossReason.INFRASTRUCTURE_ERROR,
            id="submission failed",
        ),
        pytest.param(
            {"deployment": "Failed", "reason": "JobStatusCheckTimeoutExceeded"},
            {},
            "Lost",
            LossReason.INFRASTRUCTURE_ERROR,
            id="job status unknown",
        ),
        pytest.param(
            {"status": "FAILED", "message": "entrypoint command failed with exit code 3, logs: …"},
            {},
            "Lost",
            LossReason.INFRASTRUCTURE_ERROR,
            id="exit code 3",
        ),
        pytest.param(
            {"status": "FAILED", "message": "entrypoint command failed with exit code 75"},
            {},
            "Suspended",
            LossReason.SUSPENDED,
            id="exit code 75",
        ),
        pytest.param(
            {"status": "FAILED", "message": "entrypoint command failed with exit code -11"},
            {"pods": ()},
            "Failed",
            LossReason.APPLICATION_ERROR,
            id="crashed by a signal and freed while no operator ran",
        ),
        pytest.param(
            {
                "status": "FAILED",
                "message": "entrypoint command failed with exit code 1, last available logs "
                "(truncated to 20,000 chars):\nended with exit code 75",
            },
            {},
            "Failed",
            LossReason.APPLICATION_ERROR,
            id="another exit code in its last line",
        ),
        pytest.param(
            {"status": "FAILED"},
            {"pods": (a_head(exit_code=137, ended_because="OOMKilled"),)},
            "Failed",
            LossReason.OUT_OF_MEMORY,
            id="head out of memory",
        ),
        pytest.param(
            {"status": "FAILED"}, {"pods": ()}, "Lost", LossReason.HEAD_LOST, id="head gone"
        ),
        pytest.param(
            {"status": "FAILED", "message": "entrypoint command failed with exit code 1"},
            {"pods": ()},
            "Failed",
            LossReason.APPLICATION_ERROR,
            id="failed and freed while no operator ran",
        ),
    ],
)
def test_without_the_driver_s_progress_the_ray_job_and_what_was_seen_decide(
    training: Observed,
    job: dict[str, Any],
    changes: dict[str, Any],
    outcome: str,
    reason: LossReason | None,
) -> None:
    ended = replace(training, ray_jobs=(a_ray_job(**job),), **changes)
    waited = then(ended, 60)
    last = reconcile(waited, 91).status.attempts[-1]
    assert (last.outcome, last.reason) == (outcome, reason)


def test_no_line_of_the_driver_is_in_the_status_or_in_an_event(training: Observed) -> None:
    """Ray puts the last ones into its message, where nobody has masked them."""
    message = (
        "Job entrypoint command failed with exit code 1, last available logs (truncated to "
        "20,000 chars):\nlogged in with hf_abcdefgh"
    )
    ended = replace(training, ray_jobs=(a_ray_job(status="FAILED", message=message),))
    plan = reconcile(then(ended, 60), 91)
    assert plan.status.attempts[-1].message == "Job entrypoint command failed with exit code 1"
    assert "hf_abcdefgh" not in f"{plan.status.to_dict()} {plan.events}"


def test_the_final_progress_is_awaited_for_30_seconds_while_the_head_is_there(
    training: Observed,
) -> None:
    ended = replace(
        training, ray_jobs=(a_ray_job(status="SUCCEEDED"),), progress=a_progress(), progress_age_s=5
    )
    assert reconcile(ended).status.attempts[-1].outcome == "Running"
    waited = replace(then(ended, 60), progress_age_s=20.0)
    assert reconcile(waited, 75).status.attempts[-1].outcome == "Running"
    assert (
        reconcile(replace(waited, progress_age_s=1.0), 75).status.attempts[-1].outcome
        == "Succeeded"
    )
    assert (
        reconcile(replace(waited, progress_age_s=40.0), 90).status.attempts[-1].outcome
        == "Succeeded"
    )
    result = {"metrics": {"accuracy": 0.9}}
    observed = replace(waited, progress=a_progress(state="Succeeded", result=result))
    assert reconcile(observed, 63).status.result.metrics == {"accuracy": 0.9}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("document", "outcome", "reason"),
    [
        ({"result": {"metrics": {"loss": 0.5}}}, "Succeeded", None),
        (
            {"failure": {"kind": "Application", "message": "ValueError: NaN", "retry": "Never"}},
            "Failed",
            LossReason.APPLICATION_ERROR,
        ),
        ({}, "Failed", LossReason.APPLICATION_ERROR),
    ],
    ids=["done", "failed", "unknown"],
)
def test_a_head_that_is_lost_while_it_writes_the_page_has_said_how_it_ends(
    training: Observed, document: dict[str, Any], outcome: str, reason: LossReason | None
) -> None:
    lost = replace(
        training, ray_jobs=(a_ray_job(status="FAILED"),), progress=a_progress(**document)
    )
    last = reconcile(then(lost, 60), 91).status.attempts[-1]
    assert (last.outcome, last.reason) == (outcome, reason)
    if "failure" in document:
        assert last.message == "ValueError: NaN"


def test_an_attempt_whose_spec_kuberay_refuses_ends_the_run_at_once(training: Observed) -> None:
    job = a_ray_job(deployment="ValidationFailed", message="bad spec")
    plan = reconcile(replace(training, ray_jobs=(job,)))
    assert plan.status.phase == "Failed"
    assert "bad spec" in condition(plan, "Failed").message


def test_an_application_failure_uses_one_restart_and_waits(training: Observed) -> None:
    ended = then(replace(training, progress=failed(checkpoint=SAVED)), 60)
    status = ended.run.status
    assert (status.restarts, status.disruptions.application_errors) == (1, 1)
    assert status.next_attempt_time == at(70)
    gone = replace(ended, ray_jobs=(), ray_clusters=(), pods=())
    early = reconcile(gone, 65)
    assert (early.actions, early.requeue_after_s) == ((), 5.0)
    assert isinstance(reconcile(gone, 70).actions[-1], Apply)


def test_infrastructure_uses_no_restart_and_the_next_attempt_begins_at_once(
    training: Observed,
) -> None:
    ended = then(replace(training, ray_jobs=()), 60)
    assert ended.run.status.restarts == 0
    planned = reconcile(replace(ended, ray_clusters=(), pods=()), 61)
    assert begins(planned) == 2


@pytest.mark.parametrize(
    ("reason", "attempts_without_progress", "seconds"),
    [
        pytest.param(LossReason.APPLICATION_ERROR, 0, 10, id="training: first"),
        pytest.param(LossReason.APPLICATION_ERROR, 1, 10, id="training: one"),
        pytest.param(LossReason.APPLICATION_ERROR, 2, 20, id="training: two"),
        pytest.param(LossReason.OUT_OF_MEMORY, 3, 40, id="memory: three"),
        pytest.param(LossReason.APPLICATION_ERROR, 500, 600, id="training: at most"),
        pytest.param(LossReason.NODE_LOST, 0, 0, id="node: first"),
        pytest.param(LossReason.NODE_LOST, 1, 0, id="node: one"),
        pytest.param(LossReason.NODE_LOST, 2, 10, id="node: two"),
        pytest.param(LossReason.STORAGE_ERROR, 0, 60, id="storage: first"),
        pytest.param(LossReason.STORAGE_ERROR, 3, 240, id="storage: three"),
        pytest.param(LossReason.STORAGE_ERROR, 50, 600, id="storage: at most"),
        pytest.param(LossReason.SUSPENDED, 9, 0, id="suspended"),
        pytest.param(None, 9, 0, id="no loss"),
    ],
)
def test_the_wait_grows_while_no_progress_is_made(
    reason: LossReason | None, attempts_without_progress: int, seconds: int
) -> None:
    assert backoff(reason, attempts_without_progress, Backoff()) == timedelta(seconds=seconds)


def test_the_run_fails_when_its_restarts_are_used_up(training: Observed) -> None:
    plan = reconcile(wanting(replace(training, progress=failed()), failures={"maxRestarts": 0}))
    found = condition(plan, "Failed")
    assert (plan.status.phase, found.reason) == ("Failed", "RestartsExhausted")
    assert "failures.maxRestarts is 0" in found.message
    assert "loss is NaN" in found.message


def the_next_attempt_fails(training: Observed, first: Any, second: Any) -> Any:
    """The plan at the end of attempt 2, where attempt 1 has ended with the first document."""
    ended = then(replace(training, progress=first), 60)
    gone = replace(ended, ray_jobs=(), ray_clusters=(), pods=(), progress=None)
    begun = then(gone, 80, ray_jobs=(a_ray_job(2, status="RUNNING"),))
    return reconcile(replace(begun, progress=second), 120)


UNTRAINED = {"step": 0, "step_time": None, "total_steps": None}


def an_error(attempt: int, message: str, retry: str = "UnlessRepeated", **document: Any) -> Any:
    failure = {"kind": "Application", "message": message, "retry": retry}
    return a_progress(attempt, state="Failed", failure=failure, **{**UNTRAINED, **document})


def test_the_same_error_of_the_code_before_the_first_step_is_not_tried_a_third_time(
    training: Observed,
) -> None:
    plan = the_next_attempt_fails(
        training,
        an_error(1, "rank 0 raised ImportError: no module 'nets' (/tmp/tmpx1y2z3 at 0x7f31)"),
        an_error(2, "rank 1 raised ImportError: no module 'nets' (/tmp/tmpa4b5c6 at 0x7e02)"),
    )
    found = condition(plan, "Failed")
    assert (plan.status.phase, found.reason) == ("Failed", "NonRetriableError")
    assert "two attempts in a row before their first step" in found.message
    assert "no module 'nets'" in found.message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(an_error(1, "KeyError: 'a'"), an_error(2, "KeyError: 'b'"), id="another"),
        pytest.param(
            an_error(1, "KeyError: 'a'", step=1), an_error(2, "KeyError: 'a'"), id="after a step"
        ),
        pytest.param(
            an_error(1, "URLError", "Always"), an_error(2, "URLError", "Always"), id="may pass"
        ),
    ],
)
def test_an_error_that_may_pass_is_tried_again(training: Observed, first: Any, second: Any) -> None:
    plan = the_next_attempt_fails(training, first, second)
    assert plan.status.phase == "Recovering"
    assert plan.status.attempts[-1].outcome == "Failed"


def test_a_script_that_fails_after_its_training_ends_the_run_at_once(training: Observed) -> None:
    failure = {"kind": "Application", "message": "train.py:31: KeyError", "retry": "Never"}
    plan = reconcile(replace(training, progress=a_progress(state="Failed", failure=failure)))
    found = condition(plan, "Failed")
    assert (plan.status.phase, found.reason) == ("Failed", "NonRetriableError")
    assert found.message.endswith("train.py:31: KeyError")


def test_the_run_fails_when_more_is_lost_than_max_preemptions(training: Observed) -> None:
    terminating = replace(training, pods=(*pods()[:2], a_pod("worker-2", terminating_at=60)))
    once = reconcile(wanting(terminating, failures={"maxPreemptions": 0}))
    assert condition(once, "Failed").reason == "PreemptionsExhausted"
    allowed = reconcile(wanting(terminating, failures={"maxPreemptions": 1}))
    assert allowed.status.phase != "Failed"
    lost = reconcile(wanting(replace(training, ray_jobs=()), failures={"maxPreemptions": 0}))
    assert condition(lost, "Failed").reason == "PreemptionsExhausted"


def test_a_run_that_makes_no_progress_fails_after_so_many_attempts(training: Observed) -> None:
    limit = {"failures": {"maxAttemptsWithoutProgress": 1}}
    for kind, expected in (
        ("Infrastructure", "make checkpoints more often"),
        ("Storage", "no storage"),
    ):
        plan = reconcile(wanting(replace(training, progress=failed(kind)), **limit))
        assert condition(plan, "Failed").reason == "NoProgress"
        assert expected in condition(plan, "Failed").message
    saved = reconcile(
        wanting(replace(training, progress=failed("Storage", checkpoint=SAVED)), **limit)
    )
    assert saved.status.phase == "Recovering"


def fallen_heads(seen: Observed, count: int) -> Observed:
    """The first head vanishes unseen, as many others are seen to end."""
    for number in range(count):
        head = a_head(
            uid=f"head-{number}", exit_code=1, termination_message="Traceback:\nValueError: port"
        )
        seen = then(seen, 40 + number, pods=(head,))
    return seen


def test_pods_that_end_again_and_again_before_any_training_end_the_attempt(
    training: Observed,
) -> None:
    assert reconcile(fallen_heads(training, 2), 50).status.attempts[-1].outcome == "Running"
    last = reconcile(fallen_heads(training, 3), 50).status.attempts[-1]
    assert (last.outcome, last.reason) == ("Lost", LossReason.INFRASTRUCTURE_ERROR)
    assert last.message.startswith("3 pods of spec.head ended before the training began")
    assert "exit code 1: ValueError: port; correct spec.image" in last.message
    once = wanting(fallen_heads(training, 3), failures={"maxAttemptsWithoutProgress": 1})
    assert condition(reconcile(once, 50), "Failed").message.startswith(
        "The attempt ended untrained and"
    )


def test_workers_that_never_start_end_the_attempt_by_their_number(training: Observed) -> None:
    seen = training
    for number in range(3):
        assert reconcile(seen, 50).status.attempts[-1].outcome == "Running"
        made = {"uid": f"w-{number}", "created_at": 40 + number, "exit_code": 2}
        both = [a_pod(name, **{**made, "uid": f"{name}-{number}"}) for name in ("w-1", "w-2")]
        seen = then(seen, 40 + number, pods=(a_head(), *both))
    message = reconcile(seen, 50).status.attempts[-1].message
    assert message.startswith("6 pods of spec.workers ended before the training began")


def test_workers_that_never_start_count_by_the_pod() -> None:
    seen = a_training_run(workers={"count": 16, "perPod": 8})
    for number in range(3):
        assert reconcile(seen, 50).status.attempts[-1].outcome == "Running"
        made = {"uid": f"w-{number}", "created_at": 40 + number, "exit_code": 2}
        both = [a_pod(name, **{**made, "uid": f"{name}-{number}"}) for name in ("w-1", "w-2")]
        seen = then(seen, 40 + number, pods=(a_head(), *both))
    message = reconcile(seen, 50).status.attempts[-1].message
    assert message.startswith("6 pods of spec.workers ended before the training began")


def test_a_budget_that_is_raised_in_mid_run_counts(training: Observed) -> None:
    ended = then(wanting(replace(training, progress=failed()), failures={"maxRestarts": 1}), 60)
    lowered = wanting(
        replace(ended, ray_jobs=(), ray_clusters=(), pods=()), failures={"maxRestarts": 0}
    )
    assert reconcile(lowered, 61).status.phase == "Failed"
    raised = wanting(lowered, failures={"maxRestarts": 9})
    assert reconcile(raised, 61).status.phase == "Recovering"


def test_an_ended_attempt_is_deleted_by_uid_and_the_next_waits_for_its_last_pod(
    training: Observed,
) -> None:
    ended = then(replace(training, progress=failed("Infrastructure")), 60)
    (delete,) = reconcile(ended, 61).actions
    assert isinstance(delete, Delete)
    assert (delete.ref.kind, delete.ref.uid) == ("RayJob", training.ray_jobs[0]["metadata"]["uid"])
    going = a_ray_job(created_at=61, terminating=True)
    assert reconcile(replace(ended, ray_jobs=(going,)), 62).actions == ()
    assert reconcile(replace(ended, ray_jobs=()), 63).actions == ()
    assert reconcile(replace(ended, ray_jobs=(), ray_clusters=()), 64).actions == ()
    nothing = replace(ended, ray_jobs=(), ray_clusters=(), pods=())
    assert begins(reconcile(nothing, 65)) == 2


def test_no_attempt_begins_beside_a_pod_of_a_ray_cluster_before_the_last(
    training: Observed,
) -> None:
    """Somebody deletes the RayCluster of a head whose kubelet does not answer, and KubeRay makes
    another one; then the RayJob is deleted."""
    hanging = a_head(terminating_at=40)
    second = a_ray_cluster()
    second["metadata"]["uid"] = "second"
    begun = a_head(uid="second-head", ray_cluster="second", created_at=60, phase="Pending")
    replaced = then(replace(training, ray_clusters=(second,), pods=(hanging, begun)), 70)
    ended = then(replace(replaced, ray_jobs=(), ray_clusters=(), pods=(hanging,)), 80)
    assert ended.run.status.attempts[-1].outcome == "Lost"
    assert begins(reconcile(ended, 90)) is None
    assert begins(reconcile(replace(ended, pods=()), 91)) == 2


def test_a_ray_job_that_the_status_does_not_know_is_the_attempt_just_begun() -> None:
    plan = reconcile(Observed(a_run(), ray_jobs=(a_ray_job(1, created_at=3),)), 9)
    assert plan.actions == ()
    (adopted,) = plan.status.attempts
    assert (adopted.number, adopted.start_time) == (1, at(3))


def test_pods_of_a_ray_cluster_that_nobody_has_seen_are_no_attempt_and_hold_none_back() -> None:
    """Whoever creates a pod writes its labels, and the name and UID of its owner."""
    seen = Observed(a_run(), pods=(a_head(1), a_pod(number=1, terminating_at=5)))
    assert reconcile(seen, 9).status.attempts == []
    assert begins(reconcile(seen, 9)) == 1


@pytest.mark.parametrize("number", [3, 999_999])
def test_labels_that_somebody_forged_use_up_no_numbers_of_attempts(number: int) -> None:
    """The next attempt is 1, whatever carries a number and is not the run's own."""
    job = a_ray_job(number)
    forged = job | {"metadata": job["metadata"] | {"name": "somebody-s"}}
    seen = Observed(
        a_run(), ray_jobs=(forged,), ray_clusters=(a_ray_cluster(number),), pods=pods(number=number)
    )
    created = reconcile(seen).actions[-1]
    assert isinstance(created, Apply)
    assert created.manifest["metadata"]["name"] == "digits-1"


def test_another_owner_s_ray_job_is_awaited_and_never_adopted_or_deleted() -> None:
    plan = reconcile(Observed(a_run(), ray_jobs=(a_ray_job(1, owner=OTHER_UID),)))
    assert (plan.actions, plan.status.phase, plan.status.attempts) == ((), "Pending", [])
    assert in_the_way(plan).reason == "NameTaken"
    assert plan.requeue_after_s is not None


def test_an_older_run_s_other_leftovers_are_none_of_this_run_s_business() -> None:
    plan = reconcile(
        Observed(
            a_run(),
            ray_jobs=(a_ray_job(7, owner=OTHER_UID),),
            pods=(a_pod(number=7, run_uid=OTHER_UID),),
        )
    )
    assert begins(plan) == 1


def test_a_deleted_run_is_left_to_the_garbage_collector(training: Observed) -> None:
    going = replace(training, run=a_run(deleted=True, status=training.run.status), ray_jobs=())
    plan = reconcile(going)
    assert (plan.actions, plan.status, plan.requeue_after_s) == ((), going.run.status, None)


def test_only_the_newest_twenty_attempts_are_kept() -> None:
    many = [
        Attempt(number=n, ray_job=f"digits-{n}", capacity="Spot", outcome="Lost", start_time=at(n))
        for n in range(1, 21)
    ]
    status = RunStatus(attempt=20, attempts=many, start_time=at(0))
    kept = reconcile(Observed(a_run(status=status), ray_jobs=(a_ray_job(21),)), 500).status.attempts
    assert (len(kept), kept[0].number, kept[-1].number) == (20, 2, 21)


def test_a_lowered_budget_ends_no_attempt_that_is_well(training: Observed) -> None:
    oom = a_pod("worker-1", exit_code=137, ended_because="OOMKilled")
    counted = then(replace(training, pods=(pods()[0], oom, pods()[2])), 60, pods=pods())
    assert counted.run.status.disruptions.out_of_memory == 1
    lowered = wanting(counted, failures={"maxRestarts": 0, "maxPreemptions": 0})
    assert reconcile(lowered, 62).status.attempts[-1].outcome == "Running"
    again = a_pod("worker-2", uid="next", exit_code=137, ended_because="OOMKilled", created_at=100)
    over = reconcile(replace(lowered, pods=(*pods()[:2], again)), 200)
    assert condition(over, "Failed").reason == "RestartsExhausted", "the next failure is checked"


def test_a_lowered_restart_budget_is_not_checked_for_lost_infrastructure(
    training: Observed,
) -> None:
    oom = a_pod("worker-1", exit_code=137, ended_because="OOMKilled")
    counted = then(replace(training, pods=(pods()[0], oom, pods()[2])), 60, pods=pods())
    lowered = wanting(counted, failures={"maxRestarts": 0})
    lost = then(replace(lowered, ray_jobs=()), 70)
    assert lost.run.status.attempts[-1].outcome == "Lost"
    empty = replace(lost, ray_clusters=(), pods=())
    assert begins(reconcile(empty, 71)) == 2


def test_false_starts_that_come_minutes_apart_are_not_forgotten(training: Observed) -> None:
    seen = training
    for number in range(3):
        head = a_head(uid=f"head-{number}", exit_code=1, termination_message="ValueError: port")
        seen = then(seen, 100 + 700 * number, pods=(head,))
        outcome = reconcile(seen, 110 + 700 * number).status.attempts[-1].outcome
        assert outcome == ("Lost" if number == 2 else "Running")


def test_false_starts_of_one_attempt_do_not_count_for_the_next(training: Observed) -> None:
    given_up = then(fallen_heads(training, 3), 50)
    empty = replace(given_up, ray_jobs=(), ray_clusters=(), pods=())
    second = then(empty, 100, ray_jobs=(a_ray_job(2),), pods=pods(2, created_at=100))
    assert reconcile(second, 110).status.attempts[-1].outcome == "Running"
    seen = reconcile(second, 110).status.seen
    assert not {"crashedHeads", "crashedWorkers", "counted"} & set(seen)


def test_attempts_without_storage_wait_for_somebody_to_put_it_right(training: Observed) -> None:
    for number, wait in ((1, 60), (2, 120)):
        seen = replace(training, progress=failed("Storage"))
        attempts_without_progress = {**seen.run.status.seen, "attemptsWithoutProgress": number}
        status = seen.run.status.model_copy(update={"seen": attempts_without_progress})
        run = seen.run.model_copy(update={"status": status})
        assert reconcile(replace(seen, run=run), 60).status.next_attempt_time == at(60 + wait)


# An attempt that somebody ends, and what was lost before.

LEAVING = (pods()[0], a_pod("worker-1", terminating_at=63), pods()[2])
REPLACED = (pods()[0], a_pod("worker-9", created_at=66), pods()[2])


def with_a_preemption() -> Observed:
    """A worker is taken at 64 s, while the run trains."""
    polled = then(replace(a_training_run(), progress=a_progress()), 62)
    return then(replace(polled, pods=LEAVING), 64)


def recovered(step_time: float = 75) -> Any:
    """The driver that trains again after it, as it has recorded."""
    records = [
        {"number": 1, "kind": "Preempted", "time": unix(64), "pod": "worker-1", "step": 12},
        {"number": 2, "kind": "Restored", "time": unix(70), "step": 12, "message": "resumed"},
    ]
    return a_progress(records=records, step=15, step_time=unix(step_time))


def with_a_lost_standby_pod() -> Observed:
    """No rank was there."""
    begun = a_training_run(workers={"count": 2, "standby": 1})
    third, leaves = (
        a_pod("worker-3", node="spot-3", **more) for more in ({}, {"terminating_at": 63})
    )
    waits = replace(begun, progress=a_progress(spare_pods=["worker-3"]))
    polled = then(replace(waits, pods=(*pods(), third)), 62)
    return then(replace(polled, pods=(*pods(), leaves)), 64)


def ends(seen: Observed, seconds: float, **how: Any) -> tuple[int, int, list[str]]:
    """Losses and hangs beside those in the attempt, and the history, once it has ended so."""
    plan = reconcile(replace(seen, **how), seconds)
    assert plan.status.attempts[-1].outcome == "Lost"
    found = plan.status.disruptions
    return (
        plan.status.seen.get("otherLosses", 0),
        found.hangs,
        [one.reason for one in found.history],
    )


DELETED = {"ray_jobs": (a_ray_job(terminating=True),)}


def test_an_attempt_that_someone_ends_after_a_lost_standby_pod_is_one_loss() -> None:
    assert ends(with_a_lost_standby_pod(), 80, **DELETED) == (1, 0, ["InfrastructureError"])


def test_an_attempt_that_someone_ends_once_it_has_recovered_from_a_loss_is_another_one() -> None:
    before = with_a_preemption()
    back = then(replace(before, pods=REPLACED, progress=recovered()), 76)
    assert ends(back, 80, **DELETED) == (1, 0, ["Preempted", "InfrastructureError"])
    # Which stopped nothing: the pod had waited to join. It outstays its grace period.
    unheard = replace(before, progress=a_progress(step_time=unix(124)))
    assert ends(unheard, 125, **DELETED) == (1, 0, ["Preempted", "InfrastructureError"])


def test_a_hang_that_ends_an_attempt_is_counted_after_a_loss_from_which_it_had_recovered() -> None:
    back = then(replace(with_a_preemption(), pods=REPLACED, progress=recovered()), 76)
    hung = {"kind": "Infrastructure", "message": "rank 1 hangs", "loss": "Hang"}
    told = recovered().model_copy(update=failed_with(hung))
    assert ends(back, 900, progress=told) == (0, 1, ["Preempted", "Hang"])


def failed_with(failure: dict[str, Any]) -> dict[str, Any]:
    document = a_progress(state="Failed", failure=failure)
    return {"state": document.state, "failure": document.failure}


@pytest.mark.parametrize("seconds", [66, 2000])
def test_an_attempt_that_ends_before_it_has_recovered_from_a_loss_is_not_counted_besides(
    seconds: float,
) -> None:
    assert ends(with_a_preemption(), seconds, **DELETED) == (0, 0, ["Preempted"])


def test_a_loss_that_uses_up_its_budget_is_counted_once_though_the_run_trained_since() -> None:
    """An operator that was away reads of both together."""
    begun = a_training_run(failures={"maxPreemptions": 0})
    polled = then(replace(begun, progress=a_progress()), 62)
    late = replace(polled, pods=REPLACED, progress=recovered(290))
    assert condition(reconcile(late, 300), "Failed").reason == "PreemptionsExhausted"
    assert ends(late, 300) == (0, 0, ["Preempted"])
