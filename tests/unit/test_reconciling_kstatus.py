"""What generic tools read in a run: kstatus' rules, by which Flux waits, and `kubectl wait`.

kstatus (sigs.k8s.io/cli-utils, pkg/kstatus) knows of a custom resource: a deletion timestamp is
Terminating; an older `status.observedGeneration` is InProgress; Reconciling=True is InProgress;
Stalled=True is Failed; Ready=True is Current, and every other Ready is InProgress; none is Current.
"""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import (
    T0,
    a_head,
    a_pod,
    a_progress,
    a_ray_cluster,
    a_ray_job,
    a_run,
    nodes,
    pods,
)
from support.reconciled import (
    a_polled_run,
    a_training_run,
    condition,
    reconcile,
    then,
    wanting,
)
from trainingrun.api.crd import crd
from trainingrun.api.status import RunStatus
from trainingrun.reconciling import Observed, Plan
from trainingrun.reconciling.model import FailingAction


def kstatus(run: dict[str, Any]) -> str:
    """The status that kstatus computes of an object with these fields."""
    metadata, status = run["metadata"], run.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        return "InProgress"
    conditions = {known["type"]: known["status"] for known in status.get("conditions", [])}
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "Current" if conditions.get("Ready", "True") == "True" else "InProgress"


def read(observed: Observed, planned: Plan) -> str:
    metadata = observed.run.metadata.to_dict()
    return kstatus({"metadata": metadata, "status": planned.status.to_dict()})


def ended(**document: Any) -> Observed:
    return then(replace(a_polled_run(), progress=a_progress(**document)), 70)


def resting() -> Observed:
    asked = then(wanting(a_polled_run(), suspend=True), 60)
    saved = then(replace(asked, progress=a_progress(state="Suspended")), 62)
    return replace(saved, ray_jobs=(), ray_clusters=(), pods=())


FAILED = {"state": "Failed", "failure": {"kind": "Application", "message": "ValueError"}}
NO_IMAGE = a_pod("worker-1", waiting=("ImagePullBackOff", "manifest unknown"))
FULL = a_pod("worker-1", unschedulable="0/4 nodes are available: 4 Insufficient cpu.")


def exhausted() -> Observed:
    seen = wanting(a_polled_run(), failures={"maxRestarts": 0})
    return then(replace(seen, progress=a_progress(**FAILED)), 70)


def refused(message: str) -> FailingAction:
    return FailingAction("create", "RayJob", "digits-1", message, True, T0)


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(Observed(a_run()), "InProgress", id="created"),
        pytest.param(a_training_run(), "InProgress", id="starts"),
        pytest.param(a_polled_run(), "Current", id="trains"),
        pytest.param(ended(state="Succeeded"), "Current", id="succeeded"),
        pytest.param(ended(**FAILED), "InProgress", id="is retried"),
        pytest.param(exhausted(), "Failed", id="failed"),
        pytest.param(resting(), "Current", id="suspended"),
        pytest.param(wanting(a_polled_run(), suspend=True), "InProgress", id="trains, to rest"),
        pytest.param(
            replace(a_polled_run(), progress=a_progress(storage_error="no answer for 40 s")),
            "Current",
            id="trains while the bucket is away",
        ),
        pytest.param(
            replace(a_training_run(), progress=a_progress(state="Starting", storage_error="none")),
            "InProgress",
            id="waits for the bucket",
        ),
        pytest.param(
            replace(a_training_run(), pods=(a_head(), FULL)), "InProgress", id="no capacity"
        ),
        pytest.param(
            replace(a_training_run(), pods=(a_head(), NO_IMAGE)), "Failed", id="no such image"
        ),
        pytest.param(Observed(a_run(), kuberay="missing"), "Failed", id="no KubeRay"),
        pytest.param(
            Observed(a_run(), invalid="spec.workers.count: must be at least 1"),
            "Failed",
            id="a spec that cannot be used",
        ),
        pytest.param(
            replace(a_polled_run(), invalid="spec.workers.count: must be at least 1"),
            "Current",
            id="a spec that cannot be used any more, while it trains",
        ),
        pytest.param(
            Observed(a_run(), failing=(refused("exceeded quota: team"),)),
            "InProgress",
            id="no quota",
        ),
        pytest.param(
            Observed(a_run(), failing=(refused("denied by a policy"),)),
            "Failed",
            id="refused",
        ),
    ],
)
def test_generic_tools_read_where_a_run_stands(observed: Observed, expected: str) -> None:
    assert read(observed, reconcile(observed, 75)) == expected


def test_a_run_that_no_operator_has_seen_is_in_progress() -> None:
    """Without a status kstatus takes it for Current, with no operator at all."""
    root = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    served = root["properties"]["status"]["default"]
    assert kstatus({"metadata": {"generation": 1}, "status": served}) == "InProgress"
    run = a_run(status=RunStatus.model_validate(served))
    assert reconcile(Observed(run)).status == reconcile(Observed(a_run())).status


def test_pods_that_train_while_they_are_to_be_suspended_are_not_ready() -> None:
    asked = then(wanting(a_polled_run(), suspend=True), 60)
    ready = condition(reconcile(asked, 65), "Ready")
    assert (ready.status, ready.reason) == ("False", "NotTraining")
    assert ready.message == "A checkpoint is made and pods are freed"


def test_an_ended_run_stays_as_it_is_read_while_its_leftovers_go() -> None:
    for seen, expected in ((ended(state="Succeeded"), "Current"), (exhausted(), "Failed")):
        held = a_ray_job()
        metadata = {"deletionTimestamp": "2026-11-21T12:01:11Z", "finalizers": ["x"]}
        held = {**held, "metadata": {**held["metadata"], **metadata}}
        left = replace(seen, ray_jobs=(held,), ray_clusters=(a_ray_cluster(),), pods=pods())
        assert read(left, reconcile(left, 300)) == expected
        gone = then(left, 300, ray_jobs=(), ray_clusters=(), pods=(), nodes=nodes())
        assert read(gone, reconcile(gone, 310)) == expected


def test_an_edit_of_an_ended_run_is_no_progress_that_never_ends() -> None:
    seen = then(ended(state="Succeeded"), 71)
    metadata = seen.run.metadata.model_copy(update={"generation": 2})
    edited = replace(seen, run=seen.run.model_copy(update={"metadata": metadata}))
    planned = reconcile(edited, 80)
    assert read(edited, planned) == "Current"
    assert planned.status.conditions == seen.run.status.conditions
