"""Silence alone ends nothing: not a restarted operator's, not a NetworkPolicy's, not a token's."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_head, a_pod, a_progress, a_ray_job, pods
from support.reconciled import a_polled_run, a_training_run, condition, in_the_way, reconcile, then
from trainingrun.api.status import LossReason, Phase
from trainingrun.reconciling import Observed
from trainingrun.reconciling.model import RequestSuspend

HEAD, _, TWO = pods()

DAYS = 10 * 86400.0


@pytest.fixture
def training() -> Observed:
    """A run that trains, as an operator sees it that has just started: it has polled nobody."""
    trains = then(a_polled_run(), 62)
    return replace(trains, progress=None, progress_age_s=None)


@pytest.mark.parametrize(
    "polls",
    [
        {},
        {"progress_polled_s": 0.5},
        {"progress_polled_s": DAYS},
        {"progress_polled_s": DAYS, "progress_failing_s": DAYS},
        {"progress_polled_s": DAYS, "progress_failing_s": DAYS, "progress_error": "it answers 401"},
        {"progress": a_progress(), "progress_age_s": 600.0, "progress_failing_s": DAYS},
    ],
    ids=["restarted", "first poll", "503", "no way to the head", "wrong token", "cut off"],
)
def test_a_job_that_kuberay_calls_running_is_never_ended_for_its_silence(
    training: Observed, polls: dict[str, Any]
) -> None:
    seen = replace(training, **polls)
    for seconds in (700, 3600, DAYS):
        plan = reconcile(seen, seconds)
        assert plan.status.attempts[-1].outcome == "Running"
        assert plan.actions == ()
        assert plan.status.phase is Phase.RUNNING
        assert condition(plan, "Ready").status == "True"


def test_a_head_that_cannot_be_read_is_said_with_the_reason_and_what_to_do(
    training: Observed,
) -> None:
    hesitant = replace(training, progress_failing_s=30.0, progress_polled_s=30.0)
    assert in_the_way(reconcile(hesitant, 700)).status == "False"
    reported = "it answers 401: it has the token of another key"
    failing = replace(hesitant, progress_failing_s=61.0, progress_error=reported)
    stalled = in_the_way(reconcile(failing, 700))
    assert (stalled.status, stalled.reason) == ("True", "DriverSilent")
    for word in (reported, "nothing is ended", "NetworkPolicy", "8484", "token"):
        assert word in stalled.message
    observed = then(failing, 700, progress=a_progress(), progress_failing_s=None)
    assert in_the_way(reconcile(observed, 702)).status == "False"


def test_a_driver_that_reports_nothing_while_its_head_answers_is_shown_too(
    training: Observed,
) -> None:
    waiting = replace(training, progress_polled_s=599.0)
    assert in_the_way(reconcile(waiting, 9000)).status == "False"
    stalled = in_the_way(reconcile(replace(training, progress_polled_s=601.0), 9000))
    assert (stalled.status, stalled.reason) == ("True", "DriverSilent")
    assert "digits-1-head" in stalled.message


def test_a_head_that_waited_long_for_its_workers_is_no_silent_driver(training: Observed) -> None:
    """KubeRay submits the driver once the last pod is ready."""
    late = replace(training, pods=(HEAD, a_pod("worker-1", ready=True, ready_at=8900), TWO))
    seen = replace(late, progress_polled_s=8000.0)
    assert in_the_way(reconcile(seen, 9000)).status == "False"
    assert in_the_way(reconcile(seen, 9501)).reason == "DriverSilent"


@pytest.mark.parametrize(
    "reported", [pytest.param("", id="no status"), pytest.param("PENDING", id="pending")]
)
def test_a_driver_that_was_never_submitted_is_given_up_after_ten_minutes(reported: str) -> None:
    begun = replace(a_training_run(), ray_jobs=(a_ray_job(status=reported),), progress_age_s=None)
    since = then(replace(begun, progress_polled_s=10.0), 40)
    assert (
        reconcile(replace(since, progress_polled_s=500.0), 639).status.attempts[-1].outcome
        == "Running"
    )
    last = reconcile(replace(since, progress_polled_s=600.0), 640).status.attempts[-1]
    assert (last.outcome, last.reason) == ("Lost", LossReason.INFRASTRUCTURE_ERROR)
    assert "KubeRay submitted no driver" in last.message
    missing = replace(since, pods=pods()[:2], progress_polled_s=600.0)
    assert reconcile(missing, 640).status.attempts[-1].outcome == "Running", (
        "a pod is still missing"
    )


def sidecar(pod: dict[str, Any], *, ready: bool) -> dict[str, Any]:
    """The pod with a ready Ray beside another container."""
    (ray,) = pod["status"]["containerStatuses"]
    other = {"name": "proxy", "ready": ready, "state": {"running": {}}}
    pod["status"]["containerStatuses"] = [{**ray, "ready": True}, other]
    return pod


def test_a_sidecar_that_is_not_ready_is_named_and_no_attempt_given_up_for_it() -> None:
    """KubeRay submits no driver before."""
    begun = replace(a_training_run(), ray_jobs=(a_ray_job(),), progress_age_s=None)
    held = sidecar(a_pod("worker-1", ready=False, ready_at=0), ready=False)
    waits = replace(begun, pods=(HEAD, held, TWO), progress_polled_s=600.0)
    assert in_the_way(reconcile(waits, 50)).status == "False"
    waiting = then(waits, 70)
    assert in_the_way(reconcile(waiting, 71)).reason == "PodNotReady"
    found = reconcile(waiting, 5000)
    assert found.status.attempts[-1].outcome == "Running"
    assert "Pod worker-1 runs and container proxy of it is not ready" in in_the_way(found).message
    ready = sidecar(a_pod("worker-1", ready=True, ready_at=5001), ready=True)
    over = replace(waiting, pods=(HEAD, ready, TWO))
    assert in_the_way(reconcile(over, 5002)).status == "False"


def test_a_restarted_operator_asks_itself_before_it_gives_up_and_goes_on_counting() -> None:
    begun = replace(a_training_run(), ray_jobs=(a_ray_job(),), progress_age_s=None)
    since = then(replace(begun, progress_polled_s=10.0), 40)
    restarted = replace(since, progress_polled_s=None)
    assert reconcile(restarted, 5000).status.attempts[-1].outcome == "Running"
    asked = replace(restarted, progress_polled_s=59.0)
    assert reconcile(asked, 5000).status.attempts[-1].outcome == "Running"
    asked = replace(restarted, progress_polled_s=60.0)
    assert reconcile(asked, 5000).status.attempts[-1].outcome == "Lost"


def test_a_start_that_goes_on_is_counted_from_zero_the_next_time() -> None:
    begun = replace(a_training_run(), ray_jobs=(a_ray_job(),), progress_polled_s=10.0)
    assert then(begun, 40).run.status.seen["hungSince"]
    runs = then(then(begun, 40), 50, ray_jobs=(a_ray_job(status="RUNNING"),))
    assert "hungSince" not in reconcile(runs, 60).status.seen


GAVE_UP = a_ray_job(deployment="Failed", status="RUNNING", reason="JobStatusCheckTimeoutExceeded")


def test_a_driver_that_kuberay_lost_is_asked_for_a_checkpoint_first(
    training: Observed,
) -> None:
    observed = replace(training, progress=a_progress(), progress_age_s=1.0, ray_jobs=(GAVE_UP,))
    plan = reconcile(observed, 400)
    assert plan.status.attempts[-1].outcome == "Running"
    assert plan.actions == (RequestSuspend(1),)
    assert in_the_way(plan).reason == "KubeRayGaveUp"
    asked = then(observed, 400)
    ended = reconcile(replace(asked, progress=a_progress(state="Suspended", step=40)), 410)
    last = ended.status.attempts[-1]
    assert (last.outcome, last.reason) == ("Lost", LossReason.INFRASTRUCTURE_ERROR)
    assert "step 40" in last.message
    assert ended.status.restarts == 0


@pytest.mark.parametrize(
    ("document", "within_s"),
    [
        pytest.param({}, 540, id="it answers: until a minute before KubeRay frees its pods"),
        pytest.param({"storage_error": "The bucket does not answer"}, 120, id="without a bucket"),
    ],
)
def test_a_driver_that_kuberay_lost_may_save_for_as_long_as_its_pods_are_left(
    training: Observed, document: dict[str, Any], within_s: int
) -> None:
    polled = replace(training, progress=a_progress(**document), progress_age_s=1.0)
    asked = then(replace(polled, ray_jobs=(GAVE_UP,)), 400)
    in_time = reconcile(asked, 400 + within_s - 1)
    assert in_time.status.attempts[-1].outcome == "Running"
    assert in_time.actions == (RequestSuspend(1),)
    assert reconcile(asked, 400 + within_s).status.attempts[-1].outcome == "Lost"


def test_kuberay_and_our_polls_together_end_an_attempt(training: Observed) -> None:
    failing = replace(training, ray_jobs=(GAVE_UP,), progress_failing_s=300.0)
    last = reconcile(then(failing, 400), 431).status.attempts[-1]
    assert (last.outcome, last.reason) == ("Lost", LossReason.INFRASTRUCTURE_ERROR)


def test_an_operator_s_restart_does_not_change_the_phase(training: Observed) -> None:
    before = training.run.status
    after = reconcile(training, 70).status
    assert (after.phase, after.conditions) == (before.phase, before.conditions)


@pytest.mark.parametrize(
    "against",
    [
        {"pods": (a_head(uid="another", created_at=65), *pods()[1:])},
        {"pods": (a_head(), pods()[1])},
        {"pods": (a_head(), pods()[1], a_pod("worker-2", terminating_at=65))},
        {"pods": pods()[1:]},
        {"progress": a_progress(state="Recovering"), "progress_age_s": 0.1},
    ],
    ids=["another head", "a worker less", "a worker leaves", "no head", "the driver says so"],
)
def test_what_speaks_against_the_last_phase_changes_it(
    training: Observed, against: dict[str, Any]
) -> None:
    assert reconcile(replace(training, **against), 70).status.phase is Phase.RECOVERING
