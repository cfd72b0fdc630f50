"""One undisturbed run, from the first reconcile to the last."""

from datetime import timedelta

from support.builders import T0, a_progress, a_ray_cluster, a_ray_job, a_run, nodes, pods, unix
from trainingrun.api.status import Phase, RunStatus
from trainingrun.reconciling import Observed, Plan, ReconcileSettings, plan
from trainingrun.reconciling.model import Apply, Delete, EnsureToken
from trainingrun.rendering import RenderSettings


def reconcile(observed: Observed, seconds: float = 0) -> Plan:
    return plan(observed, RenderSettings(), ReconcileSettings(), T0 + timedelta(seconds=seconds))


def begun() -> RunStatus:
    return reconcile(Observed(a_run(), ray_jobs=(a_ray_job(),))).status


def test_the_first_reconcile_makes_the_token_then_what_it_needs_then_the_ray_job():
    token, *needed, last = reconcile(Observed(a_run())).actions
    assert isinstance(token, EnsureToken)
    applied = [action for action in needed if isinstance(action, Apply)]
    assert applied == needed
    assert "NetworkPolicy" in {action.manifest["kind"] for action in applied}
    assert isinstance(last, Apply)
    assert (last.manifest["kind"], last.manifest["metadata"]["name"]) == ("RayJob", "digits-1")


def test_the_status_then_has_the_attempt():
    status = begun()
    assert (status.phase, status.attempt, status.attempts[0].ray_job) == (
        Phase.STARTING,
        1,
        "digits-1",
    )


def test_a_second_reconcile_of_the_same_thing_changes_nothing():
    observed = Observed(a_run(status=begun()), ray_jobs=(a_ray_job(),), pods=pods(), nodes=nodes())
    first = reconcile(observed, 5)
    again = reconcile(Observed(a_run(status=first.status), ray_jobs=(a_ray_job(),), pods=pods()), 9)
    assert again.status == first.status
    assert first.actions == again.actions == ()


def test_a_run_that_trains_is_running_and_ready():
    status = reconcile(training(), 62).status
    assert status.phase is Phase.RUNNING
    assert status.progress
    assert (status.progress.step, status.progress.percent) == (10, 10)
    assert next(c for c in status.conditions if c.type == "Ready").status == "True"


def training() -> Observed:
    return Observed(
        a_run(status=begun()),
        ray_jobs=(a_ray_job(status="RUNNING"),),
        ray_clusters=(a_ray_cluster(),),
        pods=pods(),
        nodes=nodes(),
        progress=a_progress(),
        progress_age_s=0.5,
    )


def test_the_driver_s_progress_ends_the_run_before_kuberay_knows():
    done = a_progress(
        state="Succeeded",
        step=100,
        result={
            "metrics": {"accuracy": 0.97},
            "checkpoint_uri": "s3://runs/team-a/x/checkpoints/9",
        },
        checkpoint={"uri": "s3://runs/team-a/x/checkpoints/9", "step": 100, "time": unix(90)},
    )
    before = reconcile(training(), 62).status
    ended = reconcile(
        Observed(
            a_run(status=before),
            ray_jobs=(a_ray_job(status="RUNNING"),),
            pods=pods(),
            progress=done,
        ),
        100,
    )
    assert ended.status.phase is Phase.SUCCEEDED
    assert ended.status.result
    assert ended.status.result.metrics == {"accuracy": 0.97}
    assert ended.actions == (), "the end is written before anything is deleted"

    cleaning = reconcile(
        Observed(a_run(status=ended.status), ray_jobs=(a_ray_job(),), pods=pods()), 101
    )
    assert [type(action) for action in cleaning.actions] == [Delete]
    counted = {"cost": cleaning.status.cost, "seen": cleaning.status.seen}
    assert cleaning.status == ended.status.model_copy(update=counted)
    assert cleaning.requeue_after_s is not None

    clean = reconcile(Observed(a_run(status=cleaning.status)), 110)
    assert (clean.actions, clean.requeue_after_s) == ((), None)
    counted = {"cost": clean.status.cost, "seen": clean.status.seen}
    assert clean.status == ended.status.model_copy(update=counted)
