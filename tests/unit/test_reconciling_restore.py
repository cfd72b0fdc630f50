"""A run that begins from another one's checkpoint: how its folder is found, and what is shown."""

import json
from dataclasses import replace
from typing import Any

import pytest

from support.builders import UID, a_progress, a_ray_job, a_run, pods, unix
from support.reconciled import begins, in_the_way, reconcile, then
from trainingrun.api.status import RestoredFrom, RunStatus
from trainingrun.reconciling import Observed, Plan
from trainingrun.rendering import RenderSettings, attempt, contract
from trainingrun_protocol.contract import CONTRACT_ENV, RunContract

OTHER = {
    "metadata": {"name": "teacher", "namespace": "ml", "uid": "feedbeef-0000"},
    "spec": {"storage": {"uri": "s3://runs/team-b/"}},
}
FOLDER = "s3://runs/team-b/teacher-feedbeef"


def restoring(**restore_from: Any) -> Observed:
    """A new run with this `storage.restoreFrom`."""
    return Observed(
        a_run(
            storage={
                "uri": "s3://runs/team-a",
                "endpoint": "http://s3",
                "restoreFrom": restore_from,
            }
        )
    )


def contract_of(plan: Plan) -> RunContract:
    """The contract in the head of the RayJob that is created."""
    job = plan.actions[-1].manifest  # type: ignore[union-attr]
    (container,) = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    (document,) = [one["value"] for one in container["env"] if one["name"] == CONTRACT_ENV]
    return RunContract.model_validate(json.loads(document))


@pytest.mark.parametrize(
    ("observed", "folder"),
    [
        pytest.param(replace(restoring(run="teacher"), restore_source=OTHER), FOLDER, id="run"),
        pytest.param(restoring(uri="gs://elsewhere/a-1/"), "gs://elsewhere/a-1", id="uri"),
    ],
)
def test_the_folder_is_written_to_the_status_before_the_first_attempt_begins(
    observed: Observed, folder: str
) -> None:
    first = reconcile(observed)
    assert first.actions == ()
    assert first.status.attempt == 0
    assert first.status.restored_from == RestoredFrom(uri=folder)
    assert first.requeue_after_s == 0
    begun = reconcile(then(observed))
    assert begins(begun) == 1
    found = contract_of(begun).restore_from
    assert found
    assert (found.uri, found.endpoint, found.step) == (folder, "http://s3", None)


def test_the_wanted_step_is_in_the_contract() -> None:
    run = restoring(uri=FOLDER, step=40)
    found = contract_of(reconcile(then(run))).restore_from
    assert found
    assert found.step == 40


def test_a_source_that_is_missing_is_awaited_in_a_sentence() -> None:
    plan = reconcile(restoring(run="teacher"))
    assert (plan.actions, plan.status.phase, plan.status.attempts) == ((), "Pending", [])
    stalled = in_the_way(plan)
    assert stalled.reason == "RestoreSourceMissing"
    assert "restoreFrom.run is teacher, and namespace" in stalled.message
    assert plan.requeue_after_s is not None
    there = replace(then(restoring(run="teacher")), restore_source=OTHER)
    found = reconcile(there)
    assert found.status.restored_from == RestoredFrom(uri=FOLDER)
    assert in_the_way(found).status == "False"


@pytest.mark.parametrize(
    "now",
    [None, {**OTHER, "metadata": {**OTHER["metadata"], "uid": "00000000-1"}}],
    ids=["deleted", "created again"],
)
def test_a_folder_that_was_found_is_kept_whatever_becomes_of_the_other_run(now: Any) -> None:
    found = then(replace(restoring(run="teacher"), restore_source=OTHER))
    begun = reconcile(replace(found, restore_source=now))
    assert begun.status.restored_from == RestoredFrom(uri=FOLDER)
    restored = contract_of(begun).restore_from
    assert restored
    assert restored.uri == FOLDER


def test_nothing_is_decided_on_a_source_that_cannot_be_seen() -> None:
    blind = replace(restoring(run="teacher"), stale={"TrainingRun": "it answers 403"})
    assert in_the_way(reconcile(blind)).reason == "ApiAccessLost"


def test_a_suspended_run_looks_for_no_source() -> None:
    resting = a_run(suspend=True, storage={"uri": "s3://runs/a", "restoreFrom": {"run": "teacher"}})
    assert in_the_way(reconcile(Observed(resting))).status == "False"


def test_the_status_shows_the_step_that_was_restored_and_the_event_from_where() -> None:
    found = then(replace(restoring(run="teacher"), restore_source=OTHER))
    begun = then(found, 61, ray_jobs=(a_ray_job(status="RUNNING"),), pods=pods(), progress_age_s=1)
    says = f"restored step 40 of another run, from {FOLDER}/checkpoints/x"
    record = {"number": 1, "kind": "Restored", "time": 0, "message": says, "step": 40}
    restored = a_progress(
        resumed_from_step=40, step=41, restored_from=f"{FOLDER}/checkpoints/x", records=[record]
    )
    plan = reconcile(replace(begun, progress=restored), 90)
    assert plan.status.restored_from == RestoredFrom(uri=FOLDER, step=40)
    assert ("Restored", says) in [(event.reason, event.message) for event in plan.events]
    own = then(replace(begun, progress=restored), 90)
    resumed = a_progress(fencing_token=2, resumed_from_step=50, step=51)
    again = reconcile(replace(own, progress=resumed), 120)
    assert again.status.restored_from == RestoredFrom(uri=FOLDER, step=40)


@pytest.mark.parametrize(("step", "restarts"), [(100_010, 1), (100_049, 1), (100_050, 0)])
def test_the_steps_of_another_run_fill_no_budget(step: int, restarts: int) -> None:
    wanted = {"uri": "s3://runs/team-a", "restoreFrom": {"uri": FOLDER}}
    found = then(Observed(a_run(storage=wanted, failures={"refillAfterSteps": 50})))
    begun = then(found, 61, ray_jobs=(a_ray_job(status="RUNNING"),), pods=pods())
    error = {"kind": "Application", "message": "ValueError: x"}
    failed = a_progress(state="Failed", step=0, step_time=None, failure=error)
    ended = then(replace(begun, progress=failed), 70, ray_jobs=(), pods=(), progress=None)
    assert ended.run.status.restarts == 1
    again = then(ended, 100, ray_jobs=(a_ray_job(2, status="RUNNING"),), pods=pods(2))
    restored = a_progress(
        2,
        step=step,
        resumed_from_step=100_000,
        restored_from=f"{FOLDER}/checkpoints/x",
        checkpoint={"uri": "s3://x", "step": step, "time": unix(150)},
    )
    plan = reconcile(replace(again, progress=restored), 160)
    assert plan.status.restarts == restarts
    assert any(event.reason == "BudgetRefilled" for event in plan.events) is (restarts == 0)


def test_a_source_that_was_not_found_is_never_rendered() -> None:
    run = restoring(run="teacher").run
    with pytest.raises(ValueError, match=r"not in status\.restoredFrom yet"):
        contract(run, 1, RenderSettings())
    status = RunStatus(restored_from=RestoredFrom(uri=FOLDER))
    assert attempt(run.model_copy(update={"status": status}), 1, RenderSettings())
    assert run.metadata.uid == UID


@pytest.mark.parametrize(
    ("theirs", "ours", "is_taken"),
    [
        ("pvc://theirs/a", "pvc://ours/b", False),
        ("pvc://theirs/a", "s3://runs", False),
        ("pvc://ours/a", "pvc://ours/b", True),
        ("s3://runs", "pvc://ours/b", True),
    ],
)
def test_a_run_on_a_claim_that_the_pods_do_not_have_is_refused_as_its_folder_is(
    theirs: str, ours: str, is_taken: bool
) -> None:
    teacher = {**OTHER, "spec": {"storage": {"uri": theirs}}}
    run = a_run(storage={"uri": ours, "restoreFrom": {"run": "teacher"}})
    plan = reconcile(Observed(run, restore_source=teacher))
    assert (plan.status.restored_from is not None) is is_taken
    stalled = in_the_way(plan)
    assert (stalled.reason == "RestoreSourceMissing") is not is_taken
    if not is_taken:
        assert stalled.message.startswith(
            f"storage.restoreFrom.run is teacher, whose folder {theirs}/teacher-feedbeef must be "
            "on the claim of storage.uri, which alone the pods have; copy it there"
        )
