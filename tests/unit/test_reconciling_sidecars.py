"""Only Ray's container is the run: what a user's sidecar does is no loss of head or worker."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_head, a_node, a_pod, pods
from support.reconciled import a_polled_run, in_the_way, reconcile, then
from trainingrun.api.status import LossReason
from trainingrun.reconciling import Observed, pod_status
from trainingrun.reconciling.losses.signs import why_pod_ended

HEAD, ONE, TWO = pods()
DONE = {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
FAILED = {"state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "sidecar"}}}
KILLED = {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
RESTARTED = {"state": {"running": {}}, "lastState": KILLED["state"]}


def beside(pod: dict[str, Any], sidecar: dict[str, Any]) -> dict[str, Any]:
    """The pod with a container of the user's, listed first."""
    statuses = [{"name": "logger", **sidecar}, *pod["status"]["containerStatuses"]]
    return {**pod, "status": {**pod["status"], "containerStatuses": statuses}}


@pytest.fixture
def training() -> Observed:
    return then(a_polled_run(), 62)


@pytest.mark.parametrize(
    "sidecar",
    [
        pytest.param(DONE, id="done"),
        pytest.param(FAILED, id="failed"),
        pytest.param(KILLED, id="killed"),
        pytest.param(RESTARTED, id="restarted"),
    ],
)
@pytest.mark.parametrize("role", ["head", "worker"])
def test_a_sidecar_that_ended_is_no_loss(
    training: Observed, role: str, sidecar: dict[str, Any]
) -> None:
    shown = (
        (beside(HEAD, sidecar), ONE, TWO) if role == "head" else (HEAD, ONE, beside(TWO, sidecar))
    )
    plan = reconcile(replace(training, pods=shown), 90)
    assert plan.actions == ()
    assert not any(plan.status.disruptions.to_dict().values())
    assert (plan.status.phase, in_the_way(plan).status) == ("Running", "False")


def test_ray_s_container_that_ended_beside_a_living_sidecar_is_a_loss(training: Observed) -> None:
    head = beside(a_head(exit_code=1), {"state": {"running": {}}})
    head["status"]["phase"] = "Running"
    assert pod_status.ended(head)
    assert not pod_status.running(head)
    assert reconcile(replace(training, pods=(head, ONE, TWO))).status.disruptions.head_losses == 1


def test_only_ray_s_own_memory_is_the_training_s(training: Observed) -> None:
    both = beside(a_pod("worker-1", exit_code=1), KILLED)
    assert why_pod_ended(both, a_node()) is LossReason.WORKER_LOST
    assert "sidecar" not in pod_status.termination_message(beside(a_pod(exit_code=3), FAILED))


def test_an_init_container_that_failed_its_pod_is_the_cause() -> None:
    pod = a_pod(phase="Failed")
    del pod["status"]["containerStatuses"]
    pod["status"]["initContainerStatuses"] = [{"name": "fetch", **FAILED}]
    assert why_pod_ended(pod, a_node()) is LossReason.WORKER_LOST
    assert pod_status.termination_message(pod) == "exit code 1: sidecar"
    starting = a_pod(phase="Pending")
    starting["status"]["initContainerStatuses"] = [{"name": "fetch", **FAILED}]
    assert why_pod_ended(starting, a_node()) is None, "it is tried again"


def test_a_native_sidecar_that_lives_on_is_a_container_that_has_not_ended() -> None:
    """An init container with restartPolicy Always, as a service mesh's proxy."""
    pod = a_pod(exit_code=0)
    assert pod_status.all_containers_ended(pod)
    pod["status"]["initContainerStatuses"] = [{"name": "wait", **DONE}, {"name": "proxy", **DONE}]
    assert pod_status.all_containers_ended(pod)
    pod["status"]["initContainerStatuses"][1] |= {"state": {"running": {}}}
    assert not pod_status.all_containers_ended(pod)
