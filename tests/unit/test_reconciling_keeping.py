"""Pods of a failed attempt that are kept, and what frees them."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_head, a_progress, a_ray_cluster, a_ray_job, at, pods
from support.reconciled import (
    a_polled_run,
    begins,
    condition,
    in_the_way,
    reconcile,
    then,
    wanting,
)
from trainingrun.reconciling import Observed
from trainingrun.reconciling.model import Delete

BACKOFF = {"initialSeconds": 300, "factor": 1, "maxSeconds": 300}
KEEPING = {"keepFailedPodsSeconds": 1000, "maxRestarts": 0}
RETRYING = {"keepFailedPodsSeconds": 1000, "maxRestarts": 3, "backoff": BACKOFF}
RAISED = {"kind": "Application", "message": "ValueError: no"}


def failed(failures: dict[str, Any], job: str = "FAILED", **spec: Any) -> Observed:
    """A run whose driver told at second 60 that the training raised."""
    training = a_polled_run(failures=failures, **spec)
    raised = replace(training, progress=a_progress(state="Failed", failure=RAISED))
    deployment = "Failed" if job == "FAILED" else "Running"
    return then(raised, 60, ray_jobs=(a_ray_job(status=job, deployment=deployment),))


def deleted(observed: Observed, seconds: float) -> list[str]:
    """The RayJobs that the next reconcile deletes."""
    actions = reconcile(observed, seconds).actions
    return [action.ref.name for action in actions if isinstance(action, Delete)]


def test_the_pods_of_a_failed_run_stay_for_as_long_as_is_said() -> None:
    run = failed(KEEPING)
    assert run.run.status.phase == "Failed"
    kept = reconcile(run, 70)
    assert kept.actions == ()
    assert kept.requeue_after_s == 990
    waiting = condition(kept, "Waiting")
    assert (waiting.status, waiting.reason) == ("True", "PodsKept")
    assert waiting.message == (
        "The pods of attempt 1 are kept until 2026-11-21T12:17:40Z and hold the GPUs, CPUs and "
        "memory that they request: failures.keepFailedPodsSeconds is 1000; set it to 0 to free them"
    )
    assert condition(kept, "Stalled").reason == "Failed"
    later = then(run, 70)
    assert deleted(later, 1059) == []
    assert deleted(later, 1060) == ["digits-1"]
    assert condition(reconcile(later, 1060), "Waiting").status == "False"


def test_they_stay_as_long_as_a_run_whose_failure_was_seen_late() -> None:
    job = a_ray_job(status="FAILED", deployment="Failed")
    job["status"]["endTime"] = at(60)
    training = a_polled_run(failures=KEEPING, ttlSecondsAfterFinished=500)
    raised = a_progress(state="Failed", failure=RAISED)
    late = then(replace(training, ray_jobs=(job,), progress=raised), 2000)
    assert late.run.status.completion_time == at(60)
    assert deleted(late, 2499) == []
    assert deleted(late, 2500) == ["digits-1"]


def test_without_the_setting_they_go_at_once() -> None:
    assert deleted(failed({"maxRestarts": 0}), 61) == ["digits-1"]


def test_the_next_attempt_begins_as_if_nothing_were_kept() -> None:
    run = failed(RETRYING)
    kept = reconcile(run, 70)
    assert kept.actions == ()
    assert in_the_way(kept).message.startswith(
        "The pods of attempt 1 are kept until 2026-11-21T12:06:00Z and"
    )
    assert condition(kept, "Ready").message == "The next attempt begins at 2026-11-21T12:06:00Z"
    assert kept.status.phase == "Recovering"
    due = then(run, 70)
    assert deleted(due, 359) == []
    assert deleted(due, 360) == ["digits-1"]
    emptied = replace(then(due, 360), ray_jobs=(), ray_clusters=(), pods=())
    assert begins(reconcile(emptied, 365)) == 2


def test_a_loss_that_is_retried_at_once_keeps_nothing() -> None:
    training = a_polled_run(failures=RETRYING)
    failure = {"kind": "Infrastructure", "message": "a node is gone"}
    lost = replace(training, progress=a_progress(state="Failed", failure=failure, step=3))
    ended = then(lost, 60, ray_jobs=(a_ray_job(status="FAILED", deployment="Failed"),))
    assert ended.run.status.attempts[-1].outcome == "Lost"
    assert deleted(ended, 61) == ["digits-1"]


@pytest.mark.parametrize(
    "spec",
    [
        {"failures": KEEPING, "suspend": True},
        {"failures": {**KEEPING, "keepFailedPodsSeconds": 0}},
        {"failures": {**KEEPING, "keepFailedPodsSeconds": 9}},
        {"failures": KEEPING, "ttlSecondsAfterFinished": 5},
    ],
    ids=["suspend", "set to 0", "set lower", "the run's own time to live"],
)
def test_what_frees_them_earlier(spec: dict[str, Any]) -> None:
    run = then(failed(KEEPING), 62)
    assert deleted(run, 70) == []
    assert deleted(wanting(run, **spec), 70) == ["digits-1"]
    assert deleted(wanting(failed(RETRYING), failures=RETRYING, suspend=True), 70) == ["digits-1"]


def test_a_deleted_run_keeps_nothing() -> None:
    run = failed(KEEPING)
    metadata = run.run.metadata.model_copy(
        update={"deletion_timestamp": "2026-11-21T12:01:05Z", "finalizers": ["example.org/x"]}
    )
    held = replace(run, run=run.run.model_copy(update={"metadata": metadata}))
    assert deleted(held, 70) == ["digits-1"]


def test_a_driver_that_may_live_is_never_kept() -> None:
    """One that the operator ends: by its deadline here, while it trains."""
    training = a_polled_run(failures=KEEPING, activeDeadlineSeconds=60)
    ended = then(training, 61)
    assert ended.run.status.phase == "Failed"
    assert deleted(ended, 62) == ["digits-1"]


def test_until_kuberay_has_read_the_end_the_head_must_be_the_one_that_told_it() -> None:
    run = failed(KEEPING, job="RUNNING")
    kept = reconcile(run, 65)
    assert (kept.actions, kept.requeue_after_s) == ((), 2.0)
    assert deleted(run, 90) == ["digits-1"], "KubeRay would submit the driver again, to a new head"
    replaced = replace(run, pods=(a_head("head-2", created_at=63), *pods()[1:]))
    assert deleted(replaced, 65) == ["digits-1"]
    assert deleted(replace(run, pods=pods()[1:]), 65) == ["digits-1"]
    restarted = replace(run, progress=None, progress_age_s=None)
    assert deleted(restarted, 65) == ["digits-1"], "a new operator has not read the end"


def test_an_operator_that_was_restarted_goes_on_keeping_what_has_ended() -> None:
    restarted = replace(failed(KEEPING), progress=None, progress_age_s=None)
    assert deleted(restarted, 500) == []
    assert deleted(restarted, 1060) == ["digits-1"]


def test_the_time_is_not_longer_than_kuberay_s_own() -> None:
    """As of an attempt that began before the setting was raised."""
    run = failed(KEEPING)
    job = a_ray_job(status="FAILED", deployment="Failed")
    job["spec"]["ttlSecondsAfterFinished"] = 600
    begun = replace(run, ray_jobs=(job,))
    assert "until 2026-11-21T12:11:00Z" in condition(reconcile(begun, 70), "Waiting").message
    assert deleted(begun, 660) == ["digits-1"]


def test_what_has_no_pods_left_is_not_kept_unless_they_cannot_be_seen() -> None:
    run = failed(KEEPING)
    gone = replace(run, pods=(), ray_clusters=(a_ray_cluster(),))
    assert deleted(gone, 70) == ["digits-1"]
    blind = replace(gone, stale={"Pod": "the API server refuses the list of pods"})
    assert deleted(blind, 70) == []


def test_a_late_ray_job_of_an_earlier_attempt_is_deleted_all_the_same() -> None:
    run = failed(RETRYING)
    retried = then(
        replace(then(run, 360), ray_jobs=(), ray_clusters=(), pods=()),
        365,
        ray_jobs=(a_ray_job(2, status="FAILED", deployment="Failed", created_at=366),),
        ray_clusters=(a_ray_cluster(2),),
        pods=pods(2, created_at=366),
        progress=a_progress(attempt=2, state="Failed", failure=RAISED),
    )
    ended = then(retried, 370)
    assert ended.run.status.attempts[-1].outcome == "Failed"
    late = replace(ended, ray_jobs=(a_ray_job(1), *ended.ray_jobs))
    assert deleted(late, 375) == ["digits-1"]
