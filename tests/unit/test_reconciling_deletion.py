"""A deleted run that finalizers of others hold trains no longer, and says so."""

from dataclasses import replace

import pytest

from support.builders import a_progress, a_ray_job, a_run
from support.reconciled import a_polled_run, condition, reconcile, then
from trainingrun.reconciling import Observed
from trainingrun.reconciling.model import Delete

ARGO = "argocd.argoproj.io/hook-finalizer"


def deleted(observed: Observed, *finalizers: str, seconds: float = 70) -> Observed:
    metadata = observed.run.metadata.model_copy(
        update={"deletion_timestamp": "2026-11-21T12:01:10Z", "finalizers": list(finalizers)}
    )
    return replace(observed, run=observed.run.model_copy(update={"metadata": metadata}))


@pytest.fixture
def held() -> Observed:
    return deleted(then(a_polled_run(), 60), ARGO)


def emptied(observed: Observed) -> Observed:
    return replace(observed, ray_jobs=(), ray_clusters=(), pods=())


def test_a_deleted_run_that_a_finalizer_holds_frees_its_pods_and_says_so(held: Observed) -> None:
    plan = reconcile(held, 70)
    assert [(a.ref.kind, a.ref.name) for a in plan.actions if isinstance(a, Delete)] == [
        ("RayJob", "digits-1")
    ]
    assert plan.status.phase == "Deleting"
    assert plan.status.attempts[-1].outcome == "Suspended"
    ready = condition(plan, "Ready")
    assert (ready.status, ready.reason) == ("False", "Deleting")
    assert ARGO in ready.message
    assert plan.status.restarts == 0
    assert plan.requeue_after_s is not None, "a failed delete is tried again"


def test_no_attempt_follows_and_the_status_comes_to_rest(held: Observed) -> None:
    freed = then(emptied(then(held, 70)), 80)
    plan = reconcile(freed, 9000)
    assert (plan.actions, plan.requeue_after_s) == ((), None)
    assert plan.status == freed.run.status
    assert plan.status.attempt == 1
    assert (plan.status.phase, plan.status.completion_time) == ("Deleting", None)


def test_a_run_that_is_deleted_while_it_waits_begins_nothing() -> None:
    for seen in (Observed(a_run()), Observed(a_run(suspend=True)), waiting_for_its_next_attempt()):
        plan = reconcile(deleted(seen, ARGO), 70)
        assert plan.actions == ()
        assert (plan.status.phase, plan.status.next_attempt_time) == ("Deleting", None)


def waiting_for_its_next_attempt() -> Observed:
    failure = {"kind": "Application", "message": "ValueError"}
    failed = replace(a_polled_run(), progress=a_progress(state="Failed", failure=failure))
    return then(emptied(then(failed, 60)), 62)


def test_an_ended_run_stays_ended_while_it_is_deleted() -> None:
    done = then(replace(a_polled_run(), progress=a_progress(state="Succeeded")), 60)
    plan = reconcile(deleted(done, ARGO), 70)
    assert plan.status == done.run.status
    assert [a.ref.kind for a in plan.actions if isinstance(a, Delete)] == ["RayJob"]


def test_what_is_deleted_with_cascade_orphan_is_left_alone(held: Observed) -> None:
    orphaning = deleted(then(a_polled_run(), 60), "orphan")
    plan = reconcile(orphaning, 70)
    assert (plan.actions, plan.status) == ((), orphaning.run.status)


def test_a_ray_job_that_was_created_just_before_the_deletion_is_deleted(held: Observed) -> None:
    begun = Observed(a_run(), ray_jobs=(a_ray_job(),))
    (delete,) = reconcile(deleted(begun, ARGO), 5).actions
    assert isinstance(delete, Delete)
    assert delete.ref.kind == "RayJob"
