"""A worker pod in which Ray has ended is replaced, though its container continues."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_node, a_progress, at, nodes, pods, unix
from support.reconciled import a_polled_run, reconcile, then
from trainingrun.reconciling import Observed
from trainingrun.reconciling.model import Delete

HEAD, ONE, TWO = pods()
RECORD = {
    "number": 1,
    "kind": "WorkerLost",
    "time": unix(50),
    "pod": "worker-1",
    "node": "spot-1",
    "message": "rank 0 died: A worker health check failed.",
}
LOST = a_progress(state="Recovering", records=[RECORD], lost_nodes=["spot-1"])


def not_ready(
    pod: dict[str, Any], *, started: float = 5, changed: float = 85, container: bool = False
) -> dict[str, Any]:
    """The pod once its readiness has changed, with its container's own."""
    (status,) = pod["status"]["containerStatuses"]
    state = {"running": {"startedAt": at(started)}}
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": at(changed)}
    return {
        **pod,
        "status": {
            **pod["status"],
            "conditions": [*pod["status"]["conditions"], ready],
            "containerStatuses": [{**status, "state": state, "ready": container}],
        },
    }


@pytest.fixture
def training() -> Observed:
    """A run whose driver has lost Ray's node of the first worker."""
    return then(replace(then(a_polled_run(), 62), progress=LOST), 64)


def deleted(observed: Observed) -> list[tuple[str, float | None]]:
    actions = reconcile(observed, 90).actions
    return [(action.ref.name, action.grace_s) for action in actions if isinstance(action, Delete)]


def test_it_is_replaced_at_once_and_is_the_loss_that_was_recorded(training: Observed) -> None:
    seen = replace(training, pods=(HEAD, not_ready(ONE), TWO))
    assert deleted(seen) == [("worker-1", 0)]
    gone = then(seen, 90, pods=(HEAD, TWO))
    assert reconcile(gone, 92).status.disruptions.to_dict() == {
        **training.run.status.disruptions.to_dict(),
        "workerFailures": 1,
    }


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(ONE, id="of unknown readiness"),
        pytest.param(not_ready(ONE, started=5, changed=3), id="that was not ready yet"),
        pytest.param(not_ready(ONE, container=True), id="whose sidecar is not ready"),
    ],
)
def test_a_pod_stays_that_may_have_ray(training: Observed, pod: dict[str, Any]) -> None:
    assert deleted(replace(training, pods=(HEAD, pod, TWO))) == []


def test_pods_of_nodes_that_ray_has_not_lost_stay(training: Observed) -> None:
    assert deleted(replace(training, pods=(HEAD, ONE, not_ready(TWO)))) == []
    heard = a_progress(records=[RECORD])
    seen = replace(training, progress=heard, pods=(HEAD, not_ready(ONE), TWO))
    assert deleted(seen) == []


@pytest.mark.parametrize("kind", ["Node", "Pod"])
def test_nothing_is_deleted_by_what_may_be_old(training: Observed, kind: str) -> None:
    seen = replace(training, pods=(HEAD, not_ready(ONE), TWO), stale={kind: "403"})
    assert deleted(seen) == []


def test_on_a_node_that_may_be_lost_itself_the_node_is_the_loss(training: Observed) -> None:
    dying = nodes(a_node("spot-1", lease_age_s=16.0))
    seen = replace(training, pods=(HEAD, not_ready(ONE), TWO), nodes=dying)
    assert deleted(seen) == [("worker-1", 0)]
    assert reconcile(seen, 90).status.disruptions.node_losses == 1
