"""Pods that end by themselves again and again after training once began end the attempt."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_head, a_pod, a_progress, a_ray_cluster, a_ray_job
from support.reconciled import a_polled_run, condition, reconcile, then
from trainingrun.api.status import LossReason
from trainingrun.reconciling import Observed, Plan

MESSAGE = "Traceback:\nRuntimeError: cannot open shared object file"
WORKERS = (a_pod("worker-1", node="spot-1"), a_pod("worker-2", node="spot-2"))


@pytest.fixture
def training() -> Observed:
    """It trained up to step 10, 60 s into the story."""
    return then(a_polled_run(), 60)


def crashed_head(number: int, second: float) -> dict[str, Any]:
    return a_head(
        uid=f"head-{number}",
        created_at=second - 20,
        exit_code=1,
        ended_at=second,
        termination_message=MESSAGE,
    )


def crashing(seen: Observed, heads: int, first: float = 100) -> Observed:
    """A head ends each minute, 20 s after its creation; the last document is of the first one."""
    for number in range(heads):
        second = first + 60 * number
        seen = replace(seen, pods=(crashed_head(number, second), *WORKERS))
        seen = then(replace(seen, progress_age_s=second - 60), second)
    return seen


def outcome(seen: Observed, second: float) -> str:
    return reconcile(seen, second).status.attempts[-1].outcome


def waiting(plan: Plan) -> str:
    found = condition(plan, "Waiting")
    return found.message if found.status == "True" else ""


def test_a_head_that_crashes_after_training_began_ends_the_attempt_with_its_own_message(
    training: Observed,
) -> None:
    assert outcome(crashing(training, 2), 170) == "Running"
    plan = reconcile(crashing(training, 3), 230)
    last = plan.status.attempts[-1]
    assert (last.outcome, last.reason) == ("Lost", LossReason.INFRASTRUCTURE_ERROR)
    assert last.message.startswith("3 pods of spec.head ended by themselves since step 10")
    assert "exit code 1: RuntimeError: cannot open shared object file" in last.message


def test_a_run_whose_heads_crash_for_ever_fails_with_the_container_s_message() -> None:
    seen = then(a_polled_run(failures={"maxAttemptsWithoutProgress": 1}), 60)
    failed = condition(reconcile(crashing(seen, 3), 230), "Failed")
    assert (failed.status, failed.reason) == ("True", "NoProgress")
    assert "cannot open shared object file" in failed.message


def test_steps_that_are_only_done_again_do_not_count_as_going_on(training: Observed) -> None:
    seen = crashing(training, 2)
    again = replace(seen, pods=(a_head(uid="head-2", created_at=190), *WORKERS))
    again = then(replace(again, progress=a_progress(step=9), progress_age_s=0.5), 210)
    assert outcome(crashing(again, 1, first=220), 222) == "Running", "it is the same head once more"
    third = replace(again, pods=(crashed_head(2, 220), *WORKERS))
    assert outcome(then(third, 220), 222) == "Lost"


def test_a_new_step_begins_the_count_anew(training: Observed) -> None:
    seen = crashing(training, 2)
    on = replace(seen, pods=(a_head(uid="head-2", created_at=190), *WORKERS))
    on = then(replace(on, progress=a_progress(step=11), progress_age_s=0.5), 210)
    crashed = replace(on, pods=(crashed_head(2, 220), *WORKERS), progress_age_s=10.0)
    assert outcome(then(crashed, 220), 222) == "Running"
    assert "crashedHeads" not in reconcile(then(crashed, 220), 222).status.seen


def test_a_worker_that_crashes_after_training_began_ends_the_attempt(training: Observed) -> None:
    seen = training
    for number in range(6):
        assert outcome(seen, 100 + 30 * number) == "Running"
        crashed = a_pod(
            "worker-1",
            uid=f"worker-1-{number}",
            created_at=80 + 30 * number,
            exit_code=139,
            ended_at=100 + 30 * number,
            termination_message="Segmentation fault",
        )
        recovering = a_progress(state="Recovering")
        seen = replace(seen, pods=(a_head(), crashed, WORKERS[1]), progress=recovering)
        done = replace(seen, ray_jobs=(a_ray_job(status="SUCCEEDED"),))
        seen = then(seen, 101 + 30 * number)
    assert outcome(done, 251) == "Running", "it is done; its last document is awaited"
    last = reconcile(seen, 260).status.attempts[-1]
    assert last.outcome == "Lost"
    assert last.message.startswith("6 pods of spec.workers ended by themselves since step 10")
    assert "exit code 139: Segmentation fault" in last.message


def test_while_pods_crash_the_container_is_named_and_kuberay_is_not_blamed(
    training: Observed,
) -> None:
    once = reconcile(crashing(training, 1), 102)
    assert waiting(once) == "", "one is a loss like any other"
    plan = reconcile(crashing(training, 2), 170)
    assert condition(plan, "Waiting").reason == "PodsCrash"
    assert "RuntimeError: cannot open shared object file" in waiting(plan)
    assert "KubeRay" not in waiting(plan) + condition(plan, "Stalled").message


def test_kuberay_is_not_blamed_for_pods_that_it_keeps_replacing(training: Observed) -> None:
    """Each time an observation is made, a pod that has just been made has ended already."""
    seen = training
    for number in range(5):
        crashed = a_pod(
            "worker-1",
            uid=f"worker-1-{number}",
            created_at=80 + 30 * number,
            exit_code=1,
            ended_at=95 + 30 * number,
        )
        seen = then(replace(seen, pods=(a_head(), crashed, WORKERS[1])), 100 + 30 * number)
    assert "KubeRay" not in str(reconcile(seen, 222).status.conditions)


def test_a_pod_that_a_kubelet_refuses_is_reported_with_the_kubelet_s_message(
    training: Observed,
) -> None:
    refused = a_pod("worker-1", phase="Failed", reason="UnexpectedAdmissionError")
    refused["status"]["message"] = "Allocate failed: no healthy devices present"
    del refused["status"]["containerStatuses"]
    seen = replace(training, pods=(a_head(), refused, WORKERS[1]), ray_clusters=(a_ray_cluster(),))
    stalled = condition(reconcile(seen, 100), "Stalled")
    assert stalled.reason == "PodsRefused"
    assert "spot-1" in stalled.message
    assert "no healthy devices present" in stalled.message
